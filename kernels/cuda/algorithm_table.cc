#include "kernels/cuda/algorithm_table.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

static_assert(std::size(kAlgorithmAttributes) == kAlgorithmAttributeCount);

constexpr char kTitle[] = "lossd algorithms 1";
constexpr char kAgain[] = "; write it again with lossctl tune";
constexpr int64_t kMaxExtent = int64_t{1} << 31;
constexpr int64_t kMaxAttribute = (int64_t{1} << 31) - 1;
// More than anybody measures; a file that is larger is another file.
constexpr size_t kMaxBytes = size_t{1} << 20;

constexpr const char* kKindNames[] = {"logits", "grad_hidden", "grad_weight"};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// What is wrong with a line; the caller says which.
absl::Status Wrong(absl::string_view what, absl::string_view must_be, absl::string_view is) {
  // A file of another kind may have lines of any length.
  const absl::string_view shown = is.substr(0, 60);
  return absl::InvalidArgumentError(absl::StrCat(what, ": must be ", must_be, ", is ",
                                                 shown.empty() ? "absent" : shown,
                                                 shown.size() < is.size() ? "..." : ""));
}

// The words behind the kind, each taken once.
class Fields {
 public:
  static absl::StatusOr<Fields> Parse(const std::vector<absl::string_view>& words) {
    Fields fields;
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      if (equals == absl::string_view::npos) return Wrong("field", "NAME=VALUE", words[i]);
      const std::string name(words[i].substr(0, equals));
      if (!fields.values_.emplace(name, words[i].substr(equals + 1)).second) {
        return Wrong(name, "given once", "given twice");
      }
    }
    return fields;
  }

  absl::Status Integer(const char* name, int64_t min, int64_t max, int64_t* value) {
    const absl::string_view text = Take(name);
    if (!absl::SimpleAtoi(text, value) || *value < min || *value > max) {
      return Wrong(name, absl::StrCat("an integer from ", min, " to ", max), text);
    }
    return absl::OkStatus();
  }

  absl::Status Type(const char* name, DType* value) {
    const absl::string_view text = Take(name);
    for (const DType type : kTypes) {
      if (text != NameOf(type)) continue;
      *value = type;
      return absl::OkStatus();
    }
    return Wrong(name, "f32, bf16 or f16", text);
  }

  absl::Status Order(bool* fixed) {
    const absl::string_view text = Take("order");
    if (text != "any" && text != "fixed") return Wrong("order", "any or fixed", text);
    *fixed = text == "fixed";
    return absl::OkStatus();
  }

  absl::Status CheckEmpty() const {
    if (values_.empty()) return absl::OkStatus();
    return Wrong("field", "one of a line of this version", values_.begin()->first);
  }

 private:
  absl::string_view Take(const char* name) {
    const auto found = values_.find(name);
    if (found == values_.end()) return "";
    const absl::string_view value = found->second;
    values_.erase(found);
    return value;
  }

  std::map<std::string, absl::string_view> values_;
};

absl::StatusOr<AlgorithmLine> ParseLine(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  const auto* kind = std::find(std::begin(kKindNames), std::end(kKindNames), words[0]);
  if (kind == std::end(kKindNames)) {
    return Wrong("product", "logits, grad_hidden or grad_weight", words[0]);
  }
  AlgorithmLine line;
  ProductShape& product = line.product;
  product.kind = static_cast<ProductKind>(kind - std::begin(kKindNames));
  LOSSD_ASSIGN_OR_RETURN(Fields fields, Fields::Parse(words));
  LOSSD_RETURN_IF_ERROR(fields.Integer("rows", 1, kMaxExtent, &product.rows));
  LOSSD_RETURN_IF_ERROR(fields.Integer("hidden", 1, kMaxExtent, &product.hidden));
  LOSSD_RETURN_IF_ERROR(fields.Integer("vocab", 1, kMaxExtent, &product.vocab));
  LOSSD_RETURN_IF_ERROR(fields.Type("inputs", &product.inputs));
  LOSSD_RETURN_IF_ERROR(fields.Type("output", &product.output));
  LOSSD_RETURN_IF_ERROR(fields.Order(&product.fixed_order));
  if (product.output != DType::kF32 && product.output != product.inputs) {
    return Wrong("output", "f32 or the type of the inputs", NameOf(product.output));
  }
  for (size_t i = 0; i < kAlgorithmAttributeCount; ++i) {
    LOSSD_RETURN_IF_ERROR(
        fields.Integer(kAlgorithmAttributes[i], 0, kMaxAttribute, &line.algorithm[i]));
  }
  LOSSD_RETURN_IF_ERROR(fields.CheckEmpty());
  return line;
}

}  // namespace

std::string Describe(const ProductShape& product) {
  return absl::StrCat(kKindNames[static_cast<int>(product.kind)], " rows=", product.rows,
                      " hidden=", product.hidden, " vocab=", product.vocab,
                      " inputs=", NameOf(product.inputs), " output=", NameOf(product.output),
                      " order=", product.fixed_order ? "fixed" : "any");
}

std::string Describe(const Algorithm& algorithm) {
  std::string text;
  for (size_t i = 0; i < kAlgorithmAttributeCount; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", kAlgorithmAttributes[i], "=", algorithm[i]);
  }
  return text;
}

absl::Status AlgorithmTable::LineError(int number, absl::string_view text) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ":", number, ": ", text));
}

absl::StatusOr<AlgorithmTable> AlgorithmTable::Parse(absl::string_view text,
                                                     absl::string_view file) {
  AlgorithmTable table;
  table.file_ = std::string(file);
  int number = 0;
  bool titled = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    line = absl::StripAsciiWhitespace(line);
    if (!titled) {
      // First of all, so that a file of another kind is not taken for a table with mistakes.
      const absl::Status wrong = Wrong("first line", absl::StrCat("\"", kTitle, "\""), line);
      if (line != kTitle) return table.LineError(number, wrong.message());
      titled = true;
      continue;
    }
    if (line.empty() || absl::StartsWith(line, "#")) continue;
    if (absl::ConsumePrefix(&line, "library ")) {
      if (table.library_line_ != 0) return table.LineError(number, "library: given twice");
      const bool known = absl::ConsumePrefix(&line, "cublaslt ");
      if (!known || !absl::SimpleAtoi(line, &table.library_) || table.library_ <= 0) {
        return table.LineError(number, Wrong("library", "\"cublaslt VERSION\"", line).message());
      }
      table.library_line_ = number;
      continue;
    }
    if (absl::ConsumePrefix(&line, "gpu ")) {
      if (table.gpu_line_ != 0) return table.LineError(number, "gpu: given twice");
      table.gpu_ = std::string(absl::StripAsciiWhitespace(line));
      table.gpu_line_ = number;
      continue;
    }
    auto parsed = ParseLine(line);
    if (!parsed.ok()) return table.LineError(number, parsed.status().message());
    parsed->number = number;
    if (!table.Add(*std::move(parsed))) {
      return table.LineError(number, "product: an earlier line is for the same one");
    }
  }
  if (table.library_line_ == 0) return table.LineError(number, "library: there is no such line");
  if (table.gpu_line_ == 0) return table.LineError(number, "gpu: there is no such line");
  return table;
}

absl::StatusOr<AlgorithmTable> AlgorithmTable::Read(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad()) {
    return absl::NotFoundError(absl::StrCat(file, ": ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is larger than any table"));
  }
  return Parse(text, file);
}

std::string AlgorithmTable::ToText() const {
  std::string text = absl::StrCat(kTitle, "\nlibrary cublaslt ", library_, "\ngpu ", gpu_, "\n");
  for (const AlgorithmLine& line : lines_) {
    if (!line.comment.empty()) absl::StrAppend(&text, "# ", line.comment, "\n");
    absl::StrAppend(&text, Describe(line.product), " ", Describe(line.algorithm), "\n");
  }
  return text;
}

absl::Status AlgorithmTable::CheckMadeFor(absl::string_view gpu, int64_t library) const {
  std::string text;
  int number = 0;
  if (library_ != library) {
    number = library_line_;
    text =
        absl::StrCat("library: must be cublaslt ", library, ", that of this build, is ", library_);
  } else if (gpu_ != gpu) {
    number = gpu_line_;
    text = absl::StrCat("gpu: must be ", gpu, ", that of this machine, is ", gpu_);
  } else {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(file_, ":", number, ": ", text, kAgain));
}

const AlgorithmLine* AlgorithmTable::Find(const ProductShape& product) const {
  const AlgorithmLine* best = nullptr;
  for (const AlgorithmLine& line : lines_) {
    ProductShape same = line.product;
    if (same.rows > product.rows || same.vocab > product.vocab) continue;
    same.rows = product.rows;
    same.vocab = product.vocab;
    if (!(same == product)) continue;
    const auto rank = [](const AlgorithmLine& of) {
      return std::make_pair(of.product.vocab, of.product.rows);
    };
    if (best == nullptr || rank(line) > rank(*best)) best = &line;
  }
  return best;
}

bool AlgorithmTable::Add(AlgorithmLine line) {
  for (const AlgorithmLine& other : lines_) {
    if (other.product == line.product) return false;
  }
  lines_.push_back(std::move(line));
  return true;
}

}  // namespace lossd
