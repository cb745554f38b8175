// lossctl status: what a server is and can do.
#include <iostream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/commands.h"
#include "client/ctl/target.h"

namespace lossd::ctl {
namespace {

void Line(absl::string_view name, const std::string& value) {
  std::cout << absl::StrCat(name, std::string(name.size() < 16 ? 16 - name.size() : 1, ' '), value,
                            "\n");
}

std::string Mebibytes(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

int RunStatus(const Arguments& arguments) {
  auto target = OpenTarget(arguments);
  if (!target.ok()) return Report("status", target.status());
  const auto ops = target->client->ListOps();
  if (!ops.ok()) return Report("status", ops.status());
  const v1::ServerInfo info = target->client->server_info();
  Line("address", target->server == nullptr
                      ? target->address
                      : absl::StrCat(target->address, " (private, ends with this command)"));
  Line("version", info.version());
  Line("pid", absl::StrCat(info.pid()));
  Line("boot id", absl::BytesToHexString(info.boot_id()));
  Line("backend", info.backend());
  Line("device", info.device());
  if (info.has_device_uuid()) Line("device uuid", absl::BytesToHexString(info.device_uuid()));
  Line("workspace", Mebibytes(info.workspace_bytes()));
  Line("inline limit", Mebibytes(info.inline_limit_bytes()));
  Line("transports", absl::StrJoin(info.transports(), ", "));
  if (info.backend() == "cuda") Line("MPS", info.mps() ? "yes" : "no");
  if (info.has_algorithm_table()) Line("algorithms", info.algorithm_table());
  int available = 0;
  for (const auto& op : ops->ops()) available += op.available() ? 1 : 0;
  Line("operations", absl::StrCat(available, " of ", ops->ops_size()));
  for (const auto& op : ops->ops()) {
    Line("", absl::StrCat(op.name(), op.available() ? "" : " (not on this backend)"));
  }
  return 0;
}

}  // namespace

Command StatusCommand() {
  return {{"status",
           "",
           0,
           0,
           "Says what a server is: backend, device, workspace, transports, operations.",
           {kTargetFlag}},
          RunStatus};
}

}  // namespace lossd::ctl
