// What a HeadRun has decided, in words and numbers.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/head_run.h"

namespace lossd {

ProductCost HeadRun::Cost() const {
  const double each = 2.0 * static_cast<double>(columns_) * static_cast<double>(head_.hidden_size);
  ProductCost cost;
  // Slices of the vocabulary are multiplied again, each for its part of grad_weight.
  const bool twice = weight_path_ == WeightPath::kSlices;
  cost.logits = each * static_cast<double>(rows_ + (twice ? rows_ : 0));
  if (pass_.gradients.hidden) cost.grad_hidden = each * static_cast<double>(real_rows_);
  if (pass_.gradients.weight) cost.grad_weight = each * static_cast<double>(real_rows_);
  return cost;
}

void HeadRun::ExplainTypes(std::vector<std::string>* reasons) const {
  if (product_ == DType::kF32 && head_.hidden.dtype != head_.weight.dtype) {
    reasons->push_back("hidden, weight: are of two types, so that they are multiplied in fp32");
  } else if (product_ != head_.hidden.dtype) {
    reasons->push_back("weight: is so small that it is multiplied in fp32");
  }
  if (convert_weight_) {
    reasons->push_back("weight: is not of the products' type with even rows: converted in tiles");
  }
  if (dz_mode_ == DzMode::kF16) {
    reasons->push_back("hidden, weight: f16 gradients are scaled, for which rows are read twice");
  }
  if (!gather_) return;
  const bool tiled = pass_.batch_invariant && !exp_;
  const char* const why = !identity_            ? "only rows that count are multiplied"
                          : rows_ != real_rows_ ? "batch_invariant fills the last tile"
                          : tiled               ? "batch_invariant multiplies fixed tiles"
                          : head_.hidden.dtype != product_ ? "they are not of the products' type"
                                                           : "they do not lie evenly";
  reasons->push_back(absl::StrCat("hidden: its rows are copied, since ", why));
}

void HeadRun::ExplainWeight(PlannedPass* out) const {
  const DType dtype = pass_.gradients.weight.dtype;
  switch (weight_path_) {
    case WeightPath::kNone:
      return;
    case WeightPath::kDirect:
      out->ways.push_back("grad_weight: the products write the destination or add to it");
      return;
    case WeightPath::kTiles:
      out->ways.push_back("grad_weight: tiles in fp32, each rounded once");
      out->reasons.push_back(absl::StrCat("grad_weight: is ", NameOf(dtype), ", which products in ",
                                          NameOf(product_), " do not write with these strides"));
      return;
    case WeightPath::kAccumulator:
      out->ways.push_back("grad_weight: added up over the chunks in fp32 in the workspace");
      out->reasons.push_back(
          absl::StrCat("grad_weight: ", NameOf(dtype), " does not add up over chunks"));
      return;
    case WeightPath::kSlices:
      out->ways.push_back(absl::StrCat("grad_weight: slices of ", slice_columns_,
                                       " columns, each one product over all rows"));
      out->reasons.push_back(
          absl::StrCat("grad_weight: ", NameOf(dtype),
                       " does not add up over chunks, and the workspace has no room for an "
                       "accumulator in fp32: the logits are multiplied twice"));
      return;
  }
}

void HeadRun::ExplainFilter(PlannedPass* out) const {
  if (filters_) {
    out->ways.push_back(
        "gradients: products of the blocks that matter, which cost at most what is given here");
    return;
  }
  if (!(pass_.gradient_filter > 0) || !pass_.gradients.any()) return;
  const char* const why = !exp_ ? "only goes with the product with exponentials"
                          : pass_.gradients.bias
                              ? "is not taken beside grad_bias, which needs every block"
                          : weight_path_ == WeightPath::kSlices
                              ? "is not taken for slices of the vocabulary"
                              : "is not taken for destinations of this type or these strides";
  out->reasons.push_back(absl::StrCat("gradient_filter: ", why));
}

PlannedPass HeadRun::Explain() const {
  PlannedPass out;
  out.plan = Describe();
  if (rows_ == 0) return out;
  out.cost = Cost();
  if (exp_) {
    out.ways.push_back(
        "logits: a product with exponentials in its epilogue, no logits in memory (epilogue=exp)");
  } else {
    out.ways.push_back("logits: in fp32 in the workspace, then a pass over each row");
    out.reasons.push_back(absl::StrCat(why_not_exp_.what, ": ", why_not_exp_.why));
  }
  if (first_ != nullptr) {
    out.ways.push_back("logits: kept while the objective of all rows is computed");
  }
  if (taken_ != nullptr) {
    out.ways.push_back("statistics: those of the product before");
    out.reasons.push_back("batch_invariant: every operation has the statistics of one product");
  }
  const size_t slices = plan_.slices.empty() ? 0 : plan_.slices[0].size();
  if (plan_.chunks.size() > 1) {
    out.reasons.push_back(absl::StrCat("workspace: holds ", plan_.LargestChunk(), " of ",
                                       real_rows_, " rows, the weight is read ",
                                       plan_.chunks.size(), " times"));
  } else if (slices > 1) {
    out.reasons.push_back(
        absl::StrCat("workspace: holds the gradient of all rows, but not their "
                     "logits: these come in ",
                     slices, " slices of rows"));
  }
  if (exp_ && DropsRows()) {
    out.ways.push_back(
        "rows without gradient: leave before the products of gradients where one in eight has none "
        "(gradient_rows=)");
  }
  ExplainTypes(&out.reasons);
  ExplainWeight(&out);
  ExplainFilter(&out);
  return out;
}

}  // namespace lossd
