// lossctl explain: which way a call would take, what it costs, and why it is not a faster one.
#include <cmath>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/conformance/elements.h"
#include "client/cpp/status.h"
#include "client/ctl/commands.h"
#include "client/ctl/explain_op.h"
#include "client/ctl/target.h"

namespace lossd::ctl {
namespace {

// More fields than an operation could make necessary one after the other.
constexpr int kMaxAdded = 16;
constexpr int64_t kMaxExtent = int64_t{1} << 24;

absl::Status Wrong(absl::string_view flag, absl::string_view must_be, absl::string_view is) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": must be ", must_be, ", is ", is));
}

// "NAME=VALUE".
absl::StatusOr<std::pair<std::string, std::string>> ParsePair(const char* flag,
                                                              const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return Wrong(flag, "NAME=VALUE", text);
  }
  return std::make_pair(text.substr(0, equals), text.substr(equals + 1));
}

absl::StatusOr<v1::DType> ParseDType(const char* flag, const std::string& text) {
  const v1::DType dtype = conformance::DTypeFromName(text);
  if (dtype == v1::DTYPE_UNSPECIFIED) {
    return Wrong(flag, "f32, bf16, f16, i32, i64 or u8", text);
  }
  return dtype;
}

std::vector<std::string> Names(const Arguments& arguments, const char* flag) {
  std::vector<std::string> names;
  for (const std::string& text : arguments.All(flag)) {
    for (const auto name : absl::StrSplit(text, ',', absl::SkipEmpty())) names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<CallShape> ParseShape(const Arguments& arguments) {
  CallShape shape;
  shape.op = arguments.words[0];
  if (arguments.Has("model-dtype")) {
    const auto model = ParseDType("model-dtype", arguments.Get("model-dtype"));
    if (!model.ok()) return model.status();
    if (!conformance::IsReal(*model)) {
      return Wrong("model-dtype", "f32, bf16 or f16", arguments.Get("model-dtype"));
    }
    shape.model = *model;
  }
  const struct {
    const char* flag;
    const char* dimension;
    int64_t absent;
  } common[] = {{"rows", "N", 8192}, {"hidden", "H", 4096}, {"vocab", "V", 128256}};
  for (const auto& [flag, dimension, absent] : common) {
    const auto extent = arguments.Integer(flag, absent, 1, kMaxExtent);
    if (!extent.ok()) return extent.status();
    shape.extents.emplace_back(dimension, *extent);
  }
  for (const std::string& text : arguments.All("extent")) {
    const auto pair = ParsePair("extent", text);
    if (!pair.ok()) return pair.status();
    int64_t extent = 0;
    if (!absl::SimpleAtoi(pair->second, &extent) || extent < 0 || extent > kMaxExtent) {
      return Wrong("extent", "NAME=COUNT of at most 2^24", text);
    }
    shape.extents.emplace_back(pair->first, extent);
  }
  for (const std::string& text : arguments.All("option")) {
    const auto pair = ParsePair("option", text);
    if (!pair.ok()) return pair.status();
    shape.options.push_back(*pair);
  }
  for (const std::string& text : arguments.All("dtype")) {
    const auto pair = ParsePair("dtype", text);
    if (!pair.ok()) return pair.status();
    const auto dtype = ParseDType("dtype", pair->second);
    if (!dtype.ok()) return dtype.status();
    shape.dtypes.emplace_back(pair->first, *dtype);
  }
  shape.with = Names(arguments, "with");
  shape.without = Names(arguments, "without");
  return shape;
}

// "512M" or "2.2e9", as lossd takes it.
absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  std::string digits = text;
  int shift = 0;
  const size_t suffix = text.empty() ? std::string::npos : std::string("KMGT").find(text.back());
  if (suffix != std::string::npos) {
    shift = 10 * static_cast<int>(suffix + 1);
    digits.pop_back();
  }
  double value = 0;
  if (!absl::SimpleAtod(digits, &value) || !(value >= 1) || std::ldexp(value, shift) > 0x1p50) {
    return Wrong("workspace", "a number of bytes such as 512M or 2.2e9", text);
  }
  return static_cast<uint64_t>(std::ldexp(value, shift));
}

absl::StatusOr<v1::DeviceDescription> ParseDevice(const Arguments& arguments) {
  v1::DeviceDescription device;
  if (arguments.Has("backend")) device.set_backend(arguments.Get("backend"));
  if (arguments.Has("workspace")) {
    const auto bytes = ParseBytes(arguments.Get("workspace"));
    if (!bytes.ok()) return bytes.status();
    device.set_workspace_bytes(*bytes);
  }
  if (arguments.Has("threads")) {
    const auto threads = arguments.Integer("threads", 0, 1, 1024);
    if (!threads.ok()) return threads.status();
    device.set_threads(static_cast<uint32_t>(*threads));
  }
  if (arguments.Has("compute-capability")) {
    const std::string text = arguments.Get("compute-capability");
    const std::vector<std::string> parts = absl::StrSplit(text, '.');
    uint32_t major = 0;
    uint32_t minor = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &major) ||
        !absl::SimpleAtoi(parts[1], &minor) || major > 99 || minor > 9) {
      return Wrong("compute-capability", "MAJOR.MINOR, such as 9.0", text);
    }
    device.set_compute_capability(10 * major + minor);
  }
  return device;
}

// Asks, and adds the tensors that the options turn out to need.
absl::StatusOr<v1::ExplainReply> Ask(Client& client, ExplainedOp* op, v1::ExplainRequest request) {
  for (int added = 0;; ++added) {
    *request.mutable_op() = op->op();
    auto reply = client.Explain(request);
    if (reply.ok() || added == kMaxAdded) return reply;
    const auto detail = ErrorDetailOf(reply.status());
    const bool needed = detail.has_value() && detail->is() == "absent" &&
                        absl::StartsWith(detail->must_be(), "given");
    if (!needed || !op->Add(detail->field())) return reply;
  }
}

void Line(absl::string_view name, const std::string& value) {
  std::cout << absl::StrFormat("%-14s %s\n", name, value);
}

void Lines(absl::string_view name, const google::protobuf::RepeatedPtrField<std::string>& values) {
  for (int i = 0; i < values.size(); ++i) Line(i == 0 ? name : "", values[i]);
}

void Parts(absl::string_view name,
           const google::protobuf::RepeatedPtrField<v1::WorkspacePart>& parts) {
  for (int i = 0; i < parts.size(); ++i) {
    Line(i == 0 ? name : "", absl::StrFormat("%14d bytes  %s", parts[i].bytes(), parts[i].what()));
  }
}

std::string InNhv(double cost, double nhv) { return absl::StrFormat("%.4g", cost / nhv); }

// The parts of a pass that cost something.
std::string CostText(const v1::PlannedPass& pass, double nhv) {
  const double sum = pass.logits_cost() + pass.grad_hidden_cost() + pass.grad_weight_cost();
  std::string text = absl::StrCat(InNhv(sum, nhv), " NHV");
  const std::pair<const char*, double> parts[] = {{"logits", pass.logits_cost()},
                                                  {"grad_hidden", pass.grad_hidden_cost()},
                                                  {"grad_weight", pass.grad_weight_cost()}};
  const char* separator = ": ";
  for (const auto& [name, cost] : parts) {
    if (cost == 0) continue;
    absl::StrAppend(&text, separator, name, " ", InNhv(cost, nhv));
    separator = ", ";
  }
  return text;
}

std::string DeviceText(const v1::DeviceDescription& device) {
  std::string text = device.backend();
  if (device.has_compute_capability()) {
    absl::StrAppend(&text, ", compute capability ", device.compute_capability() / 10, ".",
                    device.compute_capability() % 10);
  }
  if (device.has_threads()) absl::StrAppend(&text, ", ", device.threads(), " threads");
  return absl::StrCat(text, ", workspace ", device.workspace_bytes(), " bytes");
}

void Show(const ExplainedOp& op, const std::string& name, const v1::ExplainReply& reply) {
  Line(name, op.Describe());
  Line("device", DeviceText(reply.device()));
  const double nhv = op.Nhv();
  double sum = 0;
  if (reply.passes_size() == 0) Line("plan", "nothing to choose: no products");
  for (int i = 0; i < reply.passes_size(); ++i) {
    const v1::PlannedPass& pass = reply.passes(i);
    std::cout << "\n";
    if (reply.passes_size() > 1) {
      Line("sweep", absl::StrCat(i + 1, " of ", reply.passes_size()));
    }
    Line("plan", pass.plan());
    if (nhv > 0) Line("products", CostText(pass, nhv));
    Lines("way", pass.ways());
    Lines("not faster", pass.reasons());
    Parts("workspace", pass.workspace());
    sum += pass.logits_cost() + pass.grad_hidden_cost() + pass.grad_weight_cost();
  }
  std::cout << "\n";
  Parts("kept", reply.workspace());
  Line("in all", absl::StrCat(nhv > 0 ? absl::StrCat(InNhv(sum, nhv), " NHV, ") : "",
                              reply.peak_bytes(), " bytes of workspace"));
}

int RunExplain(const Arguments& arguments) {
  const auto wrong = [](const absl::Status& status) {
    std::cerr << "lossctl explain: " << status.message() << "\n";
    return 2;
  };
  const auto shape = ParseShape(arguments);
  if (!shape.ok()) return wrong(shape.status());
  v1::ExplainRequest request;
  auto device = ParseDevice(arguments);
  if (!device.ok()) return wrong(device.status());
  if (device->ByteSizeLong() > 0) *request.mutable_device() = *std::move(device);
  if (arguments.Has("batch-invariant")) request.set_batch_invariant(true);
  if (arguments.Has("gradient-filter")) {
    double filter = 0;
    if (!absl::SimpleAtod(arguments.Get("gradient-filter"), &filter)) {
      return wrong(Wrong("gradient-filter", "a number", arguments.Get("gradient-filter")));
    }
    request.set_gradient_filter(filter);
  }
  if (arguments.Has("enqueued")) request.set_completion(v1::ENQUEUED);
  auto op = ExplainedOp::Create(*shape);
  if (!op.ok()) return wrong(op.status());
  auto target = OpenTarget(arguments);
  if (!target.ok()) return Report("explain", target.status());
  const auto reply = Ask(*target->client, &*op, request);
  if (!reply.ok()) return Report("explain", reply.status());
  Show(*op, shape->op, *reply);
  return 0;
}

}  // namespace

Command ExplainCommand() {
  return {
      {"explain",
       "OP",
       1,
       1,
       "Says which way a call of these shapes would take, what it costs in multiplications "
       "(NHV = rows times hidden size\n"
       "  times vocabulary; a product is 2) and in bytes of workspace, and why a faster way is "
       "not taken. Nothing is run;\n"
       "  the call has the inputs that it needs, the loss and the gradients of the head.",
       {{"rows", "COUNT", "N, all of which count (default: 8192)"},
        {"hidden", "COUNT", "H (default: 4096)"},
        {"vocab", "COUNT", "V (default: 128256)"},
        {"extent", "NAME=COUNT", "another dimension: B, P, K, TeacherH, ...", true},
        {"model-dtype", "DTYPE", "bf16 (default), f16 or f32, of hidden, weight and gradients"},
        {"dtype", "NAME=DTYPE", "of one tensor: grad_weight=f32", true},
        {"option", "NAME=VALUE", "an option: label_smoothing=0.1, kind=GSPO", true},
        {"with", "NAME,...", "optional inputs, and outputs, that the call has: bias,entropy", true},
        {"without", "NAME,...", "outputs that it does not have: grad_weight", true},
        {"batch-invariant", nullptr, "with batch_invariant"},
        {"gradient-filter", "MASS", "with gradient_filter"},
        {"enqueued", nullptr, "with completion ENQUEUED"},
        {"backend", "NAME", "cpu or cuda, whether it is there or not (default: the server's)"},
        {"workspace", "BYTES", "as lossd --workspace (default: the server's)"},
        {"threads", "COUNT", "of the cpu backend (default: the server's)"},
        {"compute-capability", "M.N", "of the GPU (default: the server's, or 9.0)"},
        kTargetFlag}},
      RunExplain};
}

}  // namespace lossd::ctl
