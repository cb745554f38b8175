#include "kernels/core/envelope.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

constexpr int kMaxOps = 64;

}  // namespace

absl::Status CheckDonated(const v1::RunRequest& request, const Registry& registry) {
  for (const std::string& name : request.donate()) {
    bool is_input = false;
    bool can_donate = false;
    for (const v1::Op& op : request.ops()) {
      const google::protobuf::Message* message = nullptr;
      LOSSD_ASSIGN_OR_RETURN(const Op* known, registry.Select(op, &message));
      const FieldRule* rule = known->schema().Find(name);
      is_input = is_input || (rule != nullptr && rule->is_input());
      can_donate = can_donate || known->schema().CanDonate(name);
    }
    if (!is_input) return FieldError("donate", "names of inputs of the request's operations", name);
    if (!can_donate) {
      return UnimplementedError("donate", "names of inputs whose memory an output can take", name);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKnown(const google::protobuf::Message& message, absl::string_view field) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return FieldError(field.empty() ? absl::StrCat(unknown.field(0).number()) : std::string(field),
                    "made of fields and values that this server knows",
                    absl::StrCat("with unknown field or value ", unknown.field(0).number()));
}

absl::Status CheckGradientFilter(double gradient_filter) {
  // Also when it is NaN.
  if (gradient_filter >= 0 && gradient_filter < 1) return absl::OkStatus();
  return FieldError("gradient_filter", "in [0, 1)", absl::StrCat(gradient_filter));
}

absl::Status CheckOps(const v1::RunRequest& request) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request, ""));
  if (request.ops_size() == 0 || request.ops_size() > kMaxOps) {
    return FieldError("ops", absl::StrCat("1 to ", kMaxOps, " operations"),
                      absl::StrCat(request.ops_size()));
  }
  for (const v1::Op& op : request.ops()) LOSSD_RETURN_IF_ERROR(CheckKnown(op, "ops"));
  return CheckGradientFilter(request.gradient_filter());
}

}  // namespace lossd
