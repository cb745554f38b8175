// An operation of this build: its schema, the rules that the schema cannot say, and how it is run.
#ifndef LOSSD_KERNELS_CORE_OP_H_
#define LOSSD_KERNELS_CORE_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "kernels/core/binding.h"
#include "kernels/core/device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/schema.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

class HeadBackend;
class LaunchCache;
class LayerBackend;

// A device with everything the operations ask of it.
struct Backend {
  Device* device = nullptr;
  HeadBackend* head = nullptr;
  LaunchCache* launches = nullptr;  // may be null: every launch is made anew
  LayerBackend* layers = nullptr;
};

// How a call is to be run; from the request's envelope.
struct RunOptions {
  bool batch_invariant = false;
  // Softmax mass of a row below which a block of the gradient may be left out; 0: none is.
  float gradient_filter = 0;
  // The host may wait for the device inside the call (completion DONE): row counts are then exact before the products.
  bool host_may_wait = true;
  // Where the record goes at the end, beside PendingResult; null: nowhere.
  ResultRecord* record_copy = nullptr;
};

// A call after the schema check, bound and staged.
struct OpCall {
  const OpSchema* schema = nullptr;
  const google::protobuf::Message* request = nullptr;
  const Binding* binding = nullptr;
  Dims dims;
  RunOptions options;
};

// What an enqueued call leaves behind.
struct PendingResult {
  ResultRecord* record = nullptr;  // in the workspace, on the device
  std::string plan;
};

class Op {
 public:
  explicit Op(OpSchema schema) : schema_(std::move(schema)) {}
  virtual ~Op() = default;

  const OpSchema& schema() const { return schema_; }
  const std::string& name() const { return schema_.name(); }
  // Names of ResultRecord::metrics, by index.
  virtual const std::vector<std::string>& metric_names() const = 0;

  // Whether a launch that is seen again is worth recording: not where it is a kernel or two.
  virtual bool records() const { return true; }

  // The rules between fields ("clip_low is refused for REINFORCE"), after schema().Check. Looks at no data.
  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED.
  virtual absl::Status Check(const google::protobuf::Message& request, const Dims& dims) const = 0;

  // Enqueues the call, and the copy of its record to options.record_copy. Data errors that are found before the return come as INVALID_ARGUMENT with field and row; others are in the record.
  virtual absl::StatusOr<PendingResult> Enqueue(const OpCall& call, Backend& backend) const = 0;

  // Fills the reply's numbers and metrics from a record that has reached the host. Errors: the data error that the record holds.
  virtual absl::Status Finish(const google::protobuf::Message& request, const ResultRecord& record,
                              v1::OpReply* reply) const = 0;

 private:
  OpSchema schema_;
};

// The data error in a record, as every op reports it; ok if there is none.
absl::Status RecordStatus(const OpSchema& schema, const ResultRecord& record);

// Typed operations: `class LinearCrossEntropyOp final : public TypedOp<v1::LinearCrossEntropy>`.
template <class M>
class TypedOp : public Op {
 public:
  using Message = M;
  using Op::Op;

  absl::Status Check(const google::protobuf::Message& request, const Dims& dims) const final {
    return CheckRequest(static_cast<const M&>(request), dims);
  }
  absl::StatusOr<PendingResult> Enqueue(const OpCall& call, Backend& backend) const final {
    return EnqueueRequest(static_cast<const M&>(*call.request), call, backend);
  }
  absl::Status Finish(const google::protobuf::Message& request, const ResultRecord& record,
                      v1::OpReply* reply) const final {
    absl::Status status = RecordStatus(schema(), record);
    if (status.ok()) FillReply(static_cast<const M&>(request), record, reply);
    return status;
  }

 protected:
  virtual absl::Status CheckRequest(const M& request, const Dims& dims) const = 0;
  virtual absl::StatusOr<PendingResult> EnqueueRequest(const M& request, const OpCall& call,
                                                       Backend& backend) const = 0;
  virtual void FillReply(const M& request, const ResultRecord& record,
                         v1::OpReply* reply) const = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_OP_H_
