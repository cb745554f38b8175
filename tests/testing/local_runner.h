// Runs requests in this process on the CPU backend: inline tensors, and tensors in memory that the test adds as a region.
#ifndef LOSSD_TESTS_TESTING_LOCAL_RUNNER_H_
#define LOSSD_TESTS_TESTING_LOCAL_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/registry.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

class LocalRunner {
 public:
  // workspace_bytes: of the arena; small ones force several chunks.
  explicit LocalRunner(uint64_t workspace_bytes = uint64_t{64} << 20);
  ~LocalRunner();

  absl::StatusOr<v1::OpReply> Run(const v1::Op& op, const RunOptions& options = {},
                                  const std::vector<std::string>& donated = {});
  // Writable memory of the test, by the returned region id.
  uint64_t AddRegion(void* memory, uint64_t bytes);

  const Registry& registry() const { return registry_; }
  Backend& backend();

 private:
  struct Machine;
  std::unique_ptr<Machine> machine_;
  Registry registry_;
};

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_LOCAL_RUNNER_H_
