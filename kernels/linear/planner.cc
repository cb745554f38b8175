#include "kernels/linear/planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

// All memory that there could be, where no process has any.
class AnyRegion final : public RegionResolver {
 public:
  absl::StatusOr<Region> Resolve(uint64_t) const override {
    Region region;
    region.base = reinterpret_cast<std::byte*>(uintptr_t{1} << 61);
    region.bytes = uint64_t{1} << 61;
    region.writable = true;
    return region;
  }
};

// Larger calls exist nowhere, and their plans would be long.
constexpr int64_t kMaxExtent = int64_t{1} << 24;

absl::Status CheckExtents(const OpSchema& schema, const google::protobuf::Message& request,
                          const Dims& dims) {
  const auto wrong = [](const std::string& field, int64_t extent) {
    return FieldError(field, "of extents of at most 2^24 in a plan", absl::StrCat(extent));
  };
  for (const FieldRule& rule : schema.fields()) {
    if (!rule.is_tensor || !HasField(request, rule)) continue;
    for (const int64_t extent : GetTensor(request, rule).shape()) {
      if (extent > kMaxExtent) return wrong(rule.name, extent);
    }
    if (rule.dims[0] == "N" && dims["N"] > kMaxExtent) return wrong(rule.name, dims["N"]);
  }
  return absl::OkStatus();
}

// Gives every tensor a place: one of its own if the shapes are known to be sound, else the same.
void Place(const OpSchema& schema, bool sound, google::protobuf::Message* request) {
  uint64_t end = 0;
  for (const FieldRule& rule : schema.fields()) {
    if (!rule.is_tensor || !HasField(*request, rule)) continue;
    v1::Tensor* tensor = MutableTensor(request, rule);
    v1::RegionRef* place = tensor->mutable_region();
    place->set_region(1);
    place->set_byte_offset(end);
    if (!sound) continue;
    end += (ExtentBytes(*tensor) + Arena::kAlignment) / Arena::kAlignment * Arena::kAlignment;
  }
}

// By name, in the order of their first allocation.
void AddPart(const ArenaPart& part, std::vector<WorkspacePart>* parts) {
  const auto found = std::find_if(parts->begin(), parts->end(), [&](const WorkspacePart& other) {
    return other.what == part.what;
  });
  if (found == parts->end()) {
    parts->push_back({part.what, part.bytes});
  } else {
    found->bytes += part.bytes;
  }
}

}  // namespace

Planner::Planner(DeviceDescription description, uint64_t workspace_bytes)
    : device_(std::move(description), workspace_bytes) {
  arena().ListParts(&parts_);
}

absl::Status Planner::StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                                ResultRecord*) {
  if (start.host_may_wait) rows->host_count = head.rows;
  return absl::OkStatus();
}

void Planner::Add(PlannedPass pass, uint64_t mark) {
  for (const ArenaPart& part : parts_) {
    if (part.begin >= mark) AddPart(part, &pass.workspace);
  }
  explanation_.peak_bytes = std::max(explanation_.peak_bytes, arena().used());
  explanation_.passes.push_back(std::move(pass));
}

Explanation Planner::Finish() {
  for (const ArenaPart& part : parts_) AddPart(part, &explanation_.workspace);
  explanation_.peak_bytes = std::max(explanation_.peak_bytes, arena().used());
  return std::move(explanation_);
}

absl::StatusOr<Explanation> Explain(const Registry& registry, const v1::Op& op,
                                    const RunOptions& options, Planner& planner) {
  v1::Op placed = op;
  const google::protobuf::Message* selected = nullptr;
  LOSSD_ASSIGN_OR_RETURN(const Op* known, registry.Select(placed, &selected));
  const auto* reflection = placed.GetReflection();
  google::protobuf::Message* request = reflection->MutableMessage(
      &placed, reflection->GetOneofFieldDescriptor(placed, v1::Op::descriptor()->oneof_decl(0)));
  Place(known->schema(), /*sound=*/false, request);
  LOSSD_ASSIGN_OR_RETURN(const Dims dims, known->schema().Check(*request));
  LOSSD_RETURN_IF_ERROR(CheckExtents(known->schema(), *request, dims));
  Place(known->schema(), /*sound=*/true, request);
  LOSSD_ASSIGN_OR_RETURN(const AdmittedOp admitted, Admit(registry, placed, AnyRegion()));
  OpCall call;
  call.schema = &known->schema();
  call.request = admitted.request;
  call.binding = &admitted.binding;
  call.dims = admitted.dims;
  call.options = options;
  Backend backend;
  backend.device = &planner.device();
  backend.head = &planner;
  LOSSD_RETURN_IF_ERROR(known->Enqueue(call, backend).status());
  return planner.Finish();
}

}  // namespace lossd
