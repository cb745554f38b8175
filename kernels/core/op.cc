#include "kernels/core/op.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {

absl::Status RecordStatus(const OpSchema& schema, const ResultRecord& record) {
  if (record.code == 0) return absl::OkStatus();
  v1::ErrorDetail detail;
  if (record.field >= 0 && record.field < static_cast<int>(schema.fields().size())) {
    const FieldRule& rule = schema.fields()[record.field];
    detail.set_field(rule.name);
    std::string must_be = "legal on every row that counts";
    if (rule.name == "target")
      must_be = "a valid vocabulary id or ignore_index on every row that counts";
    if (rule.name == "ids" || rule.name == "teacher_topk_ids") {
      must_be = "-1 or a valid vocabulary id on every row that counts";
    }
    if (rule.name == "teacher") must_be = "at least 0 on every row that counts, as a probability";
    if (rule.name == "position") must_be = "the number of a row of cos and sin";
    if (rule.name == "temperature_rows") must_be = "finite and above 0 on every row that counts";
    if (rule.name == "cu_seqlens") must_be = "not decreasing, from 0 to the number of rows";
    if (rule.tensor.finite()) must_be = "finite on every row that counts";
    if (rule.tensor.every_element()) must_be = "finite";
    if (rule.tensor.has_min_element()) {
      must_be = absl::StrCat("finite and at least ", rule.tensor.min_element());
    }
    detail.set_must_be(must_be);
  }
  if (record.row >= 0) detail.set_row(record.row);
  return DetailError(static_cast<absl::StatusCode>(record.code), detail);
}

}  // namespace lossd
