// The memory that trainer and rollout share: the present weights one way, the sampled batch the other way.
#ifndef LOSSD_CLIENT_DEMO_EXCHANGE_H_
#define LOSSD_CLIENT_DEMO_EXCHANGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/demo/model.h"
#include "client/demo/shape.h"

namespace lossd::demo {

// Written by one side at a time; the channel says whose turn it is.
struct Exchange {
  float body[kBodyFloats];
  float head[kHeadFloats];
  // Sequences of one prompt are neighbours: the prompt's kContext pieces, then kLength sampled ones.
  int32_t pieces[kSequences * kSequencePieces];
  float logprob[kBatchRows];  // nats, of the sampled pieces, from the server
  float reward[kSequences];   // 0 ... 1
};

// A new memfd of the right size. The caller closes it.
absl::StatusOr<int> CreateExchange();
// Maps it for the rest of the process's life.
absl::StatusOr<Exchange*> MapExchange(int descriptor);

// contexts [kBatchRows, kContext] and targets [kBatchRows]: row b * kLength + t is sampled piece t of sequence b.
void RowsOfBatch(const int32_t* pieces, int32_t* contexts, int32_t* targets);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_EXCHANGE_H_
