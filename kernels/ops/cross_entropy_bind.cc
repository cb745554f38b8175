#include "kernels/ops/cross_entropy_bind.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "lossd/v1/logits.pb.h"

namespace lossd {
namespace {

template <class M>
int64_t VocabTotal(const M& request, const Dims& dims) {
  return request.head().vocab_total() > 0 ? request.head().vocab_total() : dims["V"];
}

template <class M>
absl::Status CheckWeights(const M& request, const Dims& dims) {
  if (!request.has_class_weight()) return absl::OkStatus();
  const int64_t total = VocabTotal(request, dims);
  if (dims["VocabTotal"] != total) {
    return FieldError("class_weight", absl::StrCat("of ", total, " elements"),
                      absl::StrCat(dims["VocabTotal"]));
  }
  if (request.class_weight().strides_size() > 0 && request.class_weight().strides(0) != 1 &&
      total > 1) {
    return UnimplementedError("class_weight", "of stride 1",
                              absl::StrCat("of stride ", request.class_weight().strides(0)));
  }
  return absl::OkStatus();
}

template <class M>
absl::Status CheckSmoothing(const M& request, const Dims& dims) {
  if (request.label_smoothing() == 0) {
    if (request.has_label_smoothing_kind()) {
      return FieldError("label_smoothing_kind", "absent without label_smoothing", "given");
    }
    if (request.has_label_smoothing_scope()) {
      return FieldError("label_smoothing_scope", "absent without label_smoothing", "given");
    }
    return absl::OkStatus();
  }
  if (request.label_smoothing_scope() == v1::LABEL_SMOOTHING_SCOPE_PARTITION &&
      request.has_class_weight()) {
    return FieldError("label_smoothing_scope", "GLOBAL with class_weight", "PARTITION");
  }
  if (request.label_smoothing_kind() != v1::LABEL_SMOOTHING_KIND_MEGATRON) return absl::OkStatus();
  if (request.has_class_weight()) {
    return FieldError("label_smoothing_kind", "PYTORCH with class_weight", "MEGATRON");
  }
  const int64_t valid =
      request.head().valid_vocab() > 0 ? request.head().valid_vocab() : VocabTotal(request, dims);
  if (valid == 1) {
    return FieldError("label_smoothing", "0 with kind MEGATRON and one valid id",
                      absl::StrCat(request.label_smoothing()));
  }
  return absl::OkStatus();
}

template <class M>
absl::Status CheckDenominators(const M& request) {
  const bool mean = request.reduction() == v1::REDUCTION_MEAN;
  if (!mean && request.has_denominator_from()) {
    return FieldError("denominator_from", "absent without reduction MEAN", "given");
  }
  const bool given = mean && request.denominator_from() == v1::CROSS_ENTROPY_DENOMINATOR_GIVEN;
  if (given != request.has_denominator()) {
    return FieldError("denominator",
                      given ? "given with reduction MEAN and denominator_from GIVEN"
                            : "absent without reduction MEAN and denominator_from GIVEN",
                      given ? "absent" : absl::StrCat(request.denominator()));
  }
  const bool has_z = mean && request.z_loss() > 0;
  if (!has_z && request.has_z_denominator_from()) {
    return FieldError("z_denominator_from", "absent without reduction MEAN and z_loss", "given");
  }
  const bool z_given = has_z && request.z_denominator_from() == v1::Z_DENOMINATOR_GIVEN;
  if (z_given != request.has_z_denominator()) {
    return FieldError(
        "z_denominator",
        z_given ? "given with z_denominator_from GIVEN" : "absent without z_denominator_from GIVEN",
        z_given ? "absent" : absl::StrCat(request.z_denominator()));
  }
  return absl::OkStatus();
}

template <class M>
absl::Status CheckUpstream(const M& request, bool gradients, const Dims& dims) {
  const bool none = request.reduction() == v1::REDUCTION_NONE;
  if (none && request.has_loss()) return FieldError("loss", "absent with reduction NONE", "given");
  if (!gradients && request.has_d_loss()) {
    return FieldError("d_loss", "absent where no gradient is wanted", "given");
  }
  if (none && gradients && !request.has_d_loss()) {
    return FieldError("d_loss", "given with reduction NONE", "absent");
  }
  const int64_t expected = none ? dims["N"] : 1;
  if (request.has_d_loss() && dims["Upstream"] != expected) {
    return FieldError("d_loss",
                      absl::StrCat("of ", expected, expected == 1 ? " element" : " elements"),
                      absl::StrCat(dims["Upstream"]));
  }
  return absl::OkStatus();
}

template <class M>
DenominatorFrom DenominatorOf(const M& request) {
  switch (request.denominator_from()) {
    case v1::CROSS_ENTROPY_DENOMINATOR_COUNT:
      return DenominatorFrom::kCount;
    case v1::CROSS_ENTROPY_DENOMINATOR_WEIGHT_SUM:
      return DenominatorFrom::kWeightSum;
    default:
      return DenominatorFrom::kGiven;
  }
}

template <class M>
DenominatorFrom ZDenominatorOf(const M& request) {
  switch (request.z_denominator_from()) {
    case v1::Z_DENOMINATOR_COUNT:
      return DenominatorFrom::kCount;
    case v1::Z_DENOMINATOR_GIVEN:
      return DenominatorFrom::kGiven;
    default:
      return DenominatorFrom::kSame;
  }
}

// s_e of the specification.
template <class M>
double EffectiveSmoothing(const M& request, int64_t valid) {
  const double s = request.label_smoothing();
  if (s == 0 || request.label_smoothing_kind() != v1::LABEL_SMOOTHING_KIND_MEGATRON) return s;
  return s * static_cast<double>(valid) / static_cast<double>(valid - 1);
}

template <class M>
CrossEntropyStartStage MakeStart(const M& request, const HeadEngine& engine,
                                 const CrossEntropyRows& rows, CrossEntropyScales* scales) {
  CrossEntropyStartStage start;
  start.rows = engine.head().rows;
  start.counted = engine.rows().counted;
  start.count = engine.rows().count;
  start.target = rows.target;
  start.row_weight = rows.row_weight;
  start.class_weight = rows.class_weight;
  start.valid_vocab = rows.valid_vocab;
  start.need_class_weight_sum = rows.smoothing != 0;
  start.from = DenominatorOf(request);
  start.denominator = request.has_denominator() ? request.denominator() : 1;
  start.z_from = ZDenominatorOf(request);
  start.z_denominator = request.has_z_denominator() ? request.z_denominator() : 1;
  start.record = engine.record();
  start.scales = scales;
  return start;
}

template <class M>
CrossEntropyRows BindRows(const M& request, const HeadProblem& head, const Binding& binding) {
  CrossEntropyRows rows;
  rows.valid_vocab = head.valid_vocab;
  rows.target = head.target;
  rows.row_weight = BindColumn(request.row_weight(), binding);
  rows.class_weight = BindColumn(request.class_weight(), binding);
  rows.smoothing = static_cast<float>(EffectiveSmoothing(request, head.valid_vocab));
  rows.z_loss = static_cast<float>(request.z_loss());
  rows.token_scaling = request.token_scaling();
  rows.per_row_upstream = request.reduction() == v1::REDUCTION_NONE;
  rows.d_loss = BindColumn(request.d_loss(), binding);
  rows.row_loss = BindColumn(request.row_loss(), binding);
  rows.logprob = BindColumn(request.logprob(), binding);
  rows.lse = BindColumn(request.lse(), binding);
  rows.entropy = BindColumn(request.entropy(), binding);
  rows.argmax = BindColumn(request.argmax(), binding);
  return rows;
}

// What the rows leave for the sums.
template <class M>
absl::Status AllocateColumns(const M& request, HeadEngine& engine, CrossEntropyRows* rows) {
  const int64_t count = engine.head().rows;
  LOSSD_ASSIGN_OR_RETURN(rows->ce, engine.Allocate<float>(count, "row losses"));
  if (request.z_loss() > 0) {
    LOSSD_ASSIGN_OR_RETURN(rows->z_term, engine.Allocate<float>(count, "z terms"));
  }
  LOSSD_ASSIGN_OR_RETURN(rows->degenerate, engine.Allocate<uint8_t>(count, "degenerate rows"));
  if (request.head_metrics()) {
    rows->metrics.rows = count;
    rows->metrics.metrics = kCrossEntropyMetrics;
    LOSSD_ASSIGN_OR_RETURN(rows->metrics.values,
                           engine.Allocate<float>(count * kCrossEntropyMetrics, "metrics"));
    LOSSD_ASSIGN_OR_RETURN(rows->metrics.population, engine.Allocate<uint64_t>(count, "metrics"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& CrossEntropyMetricNames() {
  static const auto* const kNames =
      new std::vector<std::string>{"accuracy", "entropy", "mean_logit"};
  return *kNames;
}

template <class M>
absl::Status CheckCrossEntropy(const M& request, bool wants_gradients, const Dims& dims) {
  if (!request.head().has_target()) return FieldError("target", "given", "absent");
  LOSSD_RETURN_IF_ERROR(CheckWeights(request, dims));
  LOSSD_RETURN_IF_ERROR(CheckSmoothing(request, dims));
  LOSSD_RETURN_IF_ERROR(CheckDenominators(request));
  return CheckUpstream(request, wants_gradients, dims);
}

template <class M>
absl::StatusOr<PendingResult> EnqueueCrossEntropy(const M& request, const HeadProblem& head,
                                                  const HeadGradients& gradients,
                                                  const OpCall& call, Backend& backend) {
  const Binding& binding = *call.binding;
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, head));
  CrossEntropyRows rows = BindRows(request, engine.head(), binding);
  LOSSD_RETURN_IF_ERROR(AllocateColumns(request, engine, &rows));
  LOSSD_ASSIGN_OR_RETURN(CrossEntropyScales * scales,
                         engine.Allocate<CrossEntropyScales>(1, "denominators"));
  rows.scales = scales;
  LOSSD_RETURN_IF_ERROR(engine.RunStage(MakeStart(request, engine, rows, scales), 1));

  HeadOutputs outputs;
  outputs.gradients = gradients;
  if (rows.class_weight && rows.smoothing != 0) {
    outputs.column_weight = static_cast<const float*>(rows.class_weight.data);
  }
  LOSSD_RETURN_IF_ERROR(engine.RunHead(rows, outputs));

  CrossEntropyEndStage end;
  end.rows = engine.head().rows;
  end.counted = engine.rows().counted;
  end.ce = rows.ce;
  end.z_term = rows.z_term;
  end.degenerate = rows.degenerate;
  end.metrics = rows.metrics;
  end.scales = scales;
  end.loss = BindColumn(request.loss(), binding);
  end.record = engine.record();
  LOSSD_RETURN_IF_ERROR(engine.RunStage(end, end.Instances()));
  return engine.Finish();
}

template <class M>
void FillCrossEntropyReply(const M& request, const ResultRecord& record, v1::OpReply* reply) {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
  reply->set_degenerate_rows(record.degenerate_rows);
  if (request.has_class_weight() || request.has_row_weight())
    reply->set_weight_sum(record.weight_sum);
  if (request.z_loss() > 0) reply->set_z_sum(record.z_sum);
  if (!request.head_metrics()) return;
  const std::vector<std::string>& names = CrossEntropyMetricNames();
  for (size_t m = 0; m < names.size(); ++m) {
    v1::Metric& metric = (*reply->mutable_metrics())[names[m]];
    metric.set_sum(record.metrics[m].sum);
    metric.set_count(record.metrics[m].count);
    metric.set_min(record.metrics[m].min);
    metric.set_max(record.metrics[m].max);
  }
}

template absl::Status CheckCrossEntropy(const v1::LinearCrossEntropy&, bool, const Dims&);
template absl::Status CheckCrossEntropy(const v1::CrossEntropy&, bool, const Dims&);
template absl::StatusOr<PendingResult> EnqueueCrossEntropy(const v1::LinearCrossEntropy&,
                                                           const HeadProblem&, const HeadGradients&,
                                                           const OpCall&, Backend&);
template absl::StatusOr<PendingResult> EnqueueCrossEntropy(const v1::CrossEntropy&,
                                                           const HeadProblem&, const HeadGradients&,
                                                           const OpCall&, Backend&);
template void FillCrossEntropyReply(const v1::LinearCrossEntropy&, const ResultRecord&,
                                    v1::OpReply*);
template void FillCrossEntropyReply(const v1::CrossEntropy&, const ResultRecord&, v1::OpReply*);

}  // namespace lossd
