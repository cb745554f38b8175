// Sizes of the demo's model and batches, and the settings of its two phases. One place, so that trainer and rollout cannot disagree.
#ifndef LOSSD_CLIENT_DEMO_SHAPE_H_
#define LOSSD_CLIENT_DEMO_SHAPE_H_

#include <cstdint>

namespace lossd::demo {

// The model looks at the last kContext pieces. All widths are multiples of 16 (matrix.h).
inline constexpr int64_t kVocab = 1024;    // V, word pieces
inline constexpr int64_t kContext = 12;    // pieces that predict the next one
inline constexpr int64_t kEmbedding = 32;  // floats for each piece
inline constexpr int64_t kInner = 192;     // width of the gated layer
inline constexpr int64_t kHidden = 128;    // H, what the head at the server sees

// Phase 1: a step is kMicroBatches calls whose gradients of the head add up.
inline constexpr int64_t kMicroBatches = 2;
inline constexpr int64_t kMicroRows = 512;
inline constexpr int64_t kHeldOutRows = 2048;

// Phase 2: every prompt is continued kGroup times; a group's rewards are compared with each other.
inline constexpr int64_t kPrompts = 8;
inline constexpr int64_t kGroup = 8;
inline constexpr int64_t kSequences = kPrompts * kGroup;  // B
inline constexpr int64_t kLength = 24;                    // pieces of a continuation
inline constexpr int64_t kSequencePieces = kContext + kLength;
inline constexpr int64_t kBatchRows = kSequences * kLength;  // N
inline constexpr int kUpdatesPerBatch = 2;

inline constexpr double kClipLow = 0.2;
inline constexpr double kClipHigh = 0.28;
inline constexpr double kKlCoefficient = 0.05;

// What the demo promises; less is a failure.
inline constexpr double kLeastLossFall = 2.0;    // nats, on text that was held out
inline constexpr double kLeastRewardRise = 0.3;  // of 1

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_SHAPE_H_
