// The row pass of a pair. A row belongs to a cluster of blocks; each keeps its slice of both sides in shared memory, in the type that it
// came in, so that both are read once and the gradient is written once. Rows that do not fit are read once for each step.
#ifndef LOSSD_KERNELS_CUDA_PAIR_KERNEL_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/block_team.cuh"
#include "kernels/cuda/pair_reduce.cuh"

namespace lossd {

static_assert(BlockTeam::kThreads == kPairThreads);

// The divergence, known to the compiler; kTopk: of a list, which only the leader's block reads.
enum class PairMode { kForward, kReverse, kMixed, kJsd, kTvd, kCosine, kTopk };

// What the leader tells the blocks of its row.
struct PairAnswer {
  PairCoefficients coefficients;
  DivergenceValue<float> value;
  TopkValue<float> topk;
};

template <bool kTopk>
struct PairEntries {};
template <>
struct PairEntries<true> {
  float raw[kMaxPairEntries];  // the student's, before its transform
  float log_q[kMaxPairEntries];
  float gradient[kMaxPairEntries];
};

template <PairMode kMode>
struct PairShared {
  PairScratch scratch;
  PairAnswer answer;
  int64_t team[kPairWarps + 1];
  PairEntries<kMode == PairMode::kTopk> entries;
};

// Sums of a row, by number in the reduction.
enum PairSum {
  kSumExp,
  kSumExpD,
  kSumExp2,
  kSumD,
  kSumHard,
  kSumQ,  // of the student over the columns of the divergence
  kSumP,
  kSumX,
  kSumY,
  kSumTeacherSquare,
  kSumNegative,
  kPairSums
};

template <PairMode kMode>
class PairBlock {
 public:
  __device__ PairBlock(const PairLaunch& launch, const Cluster& cluster, PairShared<kMode>* shared,
                       char* dynamic, int64_t r, int64_t row)
      : in_(launch),
        program_(launch.program),
        cluster_(cluster),
        shared_(shared),
        reducer_(cluster, &shared->scratch),
        r_(r),
        row_(row),
        temperature_(launch.program.Temperature(row)),
        begin_(cluster.rank() * launch.shape.slice),
        end_(min(begin_ + launch.shape.slice, launch.written)),
        split_(launch.columns < launch.student.columns),
        all_sums_(launch.program.ReadsAllSums()),
        student_(launch.student, launch.shape.on_chip, dynamic, begin_, r, row,
                 1.0f / temperature_),
        teacher_(launch.teacher, launch.shape.on_chip, dynamic + launch.shape.student_bytes, begin_,
                 r, row, 1.0f / temperature_) {
    target_ = -1;
    if (program_.has_head && program_.target) {
      target_ = static_cast<int>(program_.target.Index(row));
    }
  }

  __device__ void Run() {
    LoadAndFindMaxima();
    AddUp();
    if constexpr (kMode == PairMode::kJsd || kMode == PairMode::kTvd) CompareColumns();
    if constexpr (kMode == PairMode::kTopk) CompareEntries();
    Answer();
    WriteGradient();
    // The leader's entries are read by all blocks.
    if (kMode == PairMode::kTopk) cluster_.Sync();
  }

 private:
  static constexpr bool kTopk = kMode == PairMode::kTopk;

  __device__ int FirstColumn() const { return begin_ + 4 * static_cast<int>(threadIdx.x); }
  __device__ bool IsLogits(const PairColumns& side) const {
    return side.kind() == ValueKind::kLogits;
  }
  __device__ bool HasHard() const { return program_.hard_weight != 0; }

  __device__ void LoadAndFindMaxima();
  __device__ void AddUp();
  __device__ void AddColumn(int c, float student_raw, float teacher_raw, float* sums) const;
  __device__ void CompareColumns();
  __device__ void CompareEntries();
  __device__ void Answer();
  __device__ PairStatistics Statistics() const;
  __device__ void WriteGradient();
  __device__ float Column(int c, float student_raw, float teacher_raw) const;
  __device__ float SoftPart(int c, float student_raw, float teacher_raw) const;
  __device__ float HardPart(int c, float z) const;
  __device__ float Entry(int64_t id, float raw) const;
  __device__ void WriteEntries(float* largest);
  __device__ void Store(int j, const float* g) const;
  __device__ void StoreOne(int j, float g) const;
  __device__ void* Destination(DType* dtype) const;

  __device__ PairElement StudentAt(float raw) const {
    return ElementOf(student_, student_scale_.max, raw);
  }
  __device__ PairElement TeacherAt(int c, float raw) const {
    return c < teacher_.columns() ? ElementOf(teacher_, teacher_scale_.max, raw) : NoElement();
  }
  __device__ static Outcome<float> OutcomeOf(const PairElement& element, const PairScale& scale) {
    return {element.e * scale.inverse_sum, element.d - scale.log_sum};
  }

  const PairLaunch& in_;
  const DivergenceRows& program_;
  const Cluster& cluster_;
  PairShared<kMode>* const shared_;
  PairReducer reducer_;
  const int64_t r_;
  const int64_t row_;
  const float temperature_;
  const int begin_, end_;  // columns of this block
  const bool split_;       // the divergence leaves some of the student's columns out
  const bool all_sums_;
  PairColumns student_;
  PairColumns teacher_;
  int target_;

  float whole_max_;          // of all the student's columns
  PairScale student_scale_;  // of those of the divergence
  PairScale teacher_scale_;
  float sums_[kPairSums];
  int argmax_ = -1;
  float scale_ = 1;  // of fp16's dz
  PairAnswer answer_;
  float hard_inverse_ = 1;
};

template <PairMode kMode>
__device__ void PairBlock<kMode>::LoadAndFindMaxima() {
  float maxima[3] = {-INFINITY, -INFINITY, -INFINITY};
#pragma unroll 2
  for (int j = FirstColumn(); j < end_; j += kPairStep) {
    const float4 s = student_.Load(j);
    const float4 t = kTopk ? make_float4(0, 0, 0, 0) : teacher_.Load(j);
    const float student[4] = {s.x, s.y, s.z, s.w};
    const float teacher[4] = {t.x, t.y, t.z, t.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i < student_.columns()) {
        const float z = student_.transform()(student[i]);
        maxima[0] = MaxOrNan(maxima[0], z);
        if (j + i < in_.columns) maxima[1] = MaxOrNan(maxima[1], z);
      }
      if (!kTopk && j + i < teacher_.columns()) {
        maxima[2] = MaxOrNan(maxima[2], teacher_.transform()(teacher[i]));
      }
    }
  }
  reducer_.Run(maxima, MaxFloats());
  whole_max_ = maxima[0];
  student_scale_.max = IsLogits(student_) ? maxima[1] : 0.0f;
  teacher_scale_.max = IsLogits(teacher_) ? maxima[2] : 0.0f;
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::AddColumn(int c, float student_raw, float teacher_raw,
                                            float* sums) const {
  if (c >= student_.columns()) return;
  const PairElement q = StudentAt(student_raw);
  if (IsLogits(student_)) {
    const float d = q.z - whole_max_;
    const float e = split_ ? __expf(d) : q.e;
    sums[kSumExp] += e;
    if (all_sums_) {
      sums[kSumExpD] += e * fmaxf(d, kLowest);
      sums[kSumExp2] += e * e;
      sums[kSumD] += d;
    }
    if (HasHard() && temperature_ != 1) sums[kSumHard] += __expf(d * temperature_);
  }
  if (kTopk || c >= in_.columns) return;
  const PairElement p = TeacherAt(c, teacher_raw);
  sums[kSumQ] += q.e;
  sums[kSumP] += p.e;
  if (p.e < 0) sums[kSumNegative] = 1;
  if constexpr (kMode == PairMode::kForward || kMode == PairMode::kMixed) {
    const float floor = program_.divergence.teacher_floor;
    const float d = kMode == PairMode::kForward && floor > 0 && p.e < floor ? logf(floor) : p.d;
    if (p.e != 0) sums[kSumX] += p.e * (d - q.d);
  }
  if constexpr (kMode == PairMode::kReverse || kMode == PairMode::kMixed) {
    if (q.e != 0) sums[kSumY] += q.e * (q.d - p.d);
  }
  if constexpr (kMode == PairMode::kCosine) {
    sums[kSumX] += q.z * p.z;
    sums[kSumY] += q.z * q.z;
    sums[kSumTeacherSquare] += p.z * p.z;
  }
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::AddUp() {
  float sums[kPairSums] = {};
  float first = -INFINITY;  // minus the first column of the maximum
  for (int j = FirstColumn(); j < end_; j += kPairStep) {
    const float4 s = student_.Again(j);
    const float4 t = kTopk ? make_float4(0, 0, 0, 0) : teacher_.Again(j);
    const float student[4] = {s.x, s.y, s.z, s.w};
    const float teacher[4] = {t.x, t.y, t.z, t.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      AddColumn(j + i, student[i], teacher[i], sums);
      if (all_sums_ && j + i < student_.columns() &&
          student_.transform()(student[i]) == whole_max_) {
        first = fmaxf(first, -static_cast<float>(j + i));
      }
    }
  }
  reducer_.Run(sums, AddFloats());
  if (all_sums_) {
    float best[1] = {first};
    reducer_.Run(best, MaxFloats());
    argmax_ = best[0] == -INFINITY ? -1 : static_cast<int>(-best[0]);
  }
  const auto set = [](const PairColumns& side, float sum, PairScale* scale) {
    if (side.kind() != ValueKind::kLogits) return;
    // No column at all, or none above -infinity.
    if (!(sum > 0)) sum = NAN;
    scale->log_sum = logf(sum);
    scale->inverse_sum = 1.0f / sum;
  };
  set(student_, kTopk ? sums[kSumExp] : sums[kSumQ], &student_scale_);
  set(teacher_, sums[kSumP], &teacher_scale_);
  // From d and e to log p and p.
  const float shift = student_scale_.log_sum - teacher_scale_.log_sum;
  const float p_mass = IsLogits(teacher_) ? 1.0f : sums[kSumP];
  const float q_mass = IsLogits(student_) ? 1.0f : sums[kSumQ];
  if constexpr (kMode != PairMode::kCosine) {
    sums[kSumX] = sums[kSumX] * teacher_scale_.inverse_sum + p_mass * shift;
    sums[kSumY] = sums[kSumY] * student_scale_.inverse_sum - q_mass * shift;
  }
  sums[kSumP] = p_mass;
#pragma unroll
  for (int v = 0; v < kPairSums; ++v) sums_[v] = sums[v];
}

// Divergences that need both normalised sides.
template <PairMode kMode>
__device__ void PairBlock<kMode>::CompareColumns() {
  float sums[2] = {};
  for (int j = FirstColumn(); j < min(end_, in_.columns); j += kPairStep) {
    const float4 s = student_.Again(j);
    const float4 t = teacher_.Again(j);
    const float student[4] = {s.x, s.y, s.z, s.w};
    const float teacher[4] = {t.x, t.y, t.z, t.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i >= in_.columns) continue;
      const DivergenceTerms<float> terms =
          TermsOf(program_.divergence, OutcomeOf(TeacherAt(j + i, teacher[i]), teacher_scale_),
                  OutcomeOf(StudentAt(student[i]), student_scale_));
      sums[0] += terms.x;
      sums[1] += terms.y;
    }
  }
  reducer_.Run(sums, AddFloats());
  sums_[kSumX] = sums[0];
  sums_[kSumY] = sums[1];
}

// The leader's block alone works on the list.
template <PairMode kMode>
__device__ void PairBlock<kMode>::CompareEntries() {
  if (cluster_.rank() != 0) return;
  auto& entries = shared_->entries;
  const int width = static_cast<int>(in_.topk_ids.width);
  for (int k = threadIdx.x; k < width; k += kPairThreads) {
    const int64_t id = in_.topk_ids.Index(row_, k);
    entries.raw[k] = id < 0 ? 0.0f : student_.Raw(static_cast<int>(id));
    const float z = student_.transform()(entries.raw[k]);
    const float value = z - student_scale_.max - student_scale_.log_sum;
    entries.log_q[k] = value > 0 ? 0.0f : value;
  }
  __syncthreads();
  TopkEntries<float> list;
  list.width = width;
  list.ids = &in_.topk_ids;
  list.row = row_;
  list.value = in_.topk_logprob.template Row<const float>(row_);
  list.value_scale = program_.topk_tempered ? 1.0f : 1.0f / temperature_;
  list.log_q = entries.log_q;
  list.entropy = Statistics().student.Entropy();
  list.gradient = entries.gradient;
  BlockTeam team(shared_->team);
  const TopkValue<float> value = TopkRow<float>(program_.topk, list).Run(team);
  if (threadIdx.x == 0) shared_->answer.topk = value;
}

template <PairMode kMode>
__device__ PairStatistics PairBlock<kMode>::Statistics() const {
  PairStatistics out;
  out.negative = sums_[kSumNegative] > 0;
  if (!program_.has_head) return out;
  RowStatistics& stats = out.student;
  stats.max = whole_max_;
  stats.sum_exp = sums_[kSumExp];
  stats.sum_exp_d = sums_[kSumExpD];
  stats.sum_exp_2 = sums_[kSumExp2];
  stats.sum_d = sums_[kSumD];
  stats.argmax = argmax_;
  if (target_ >= 0) {
    stats.owns_target = true;
    stats.target_d = student_.transform()(student_.Raw(target_)) - whole_max_;
  }
  // A NaN or +infinity logit, or none above -infinity: each makes a NaN of z - max.
  if (!(stats.sum_exp > 0)) {
    if (!(stats.max == -INFINITY)) stats.max = NAN;
    stats.sum_exp = stats.sum_exp_d = stats.sum_exp_2 = stats.sum_d = stats.target_d = NAN;
    stats.argmax = -1;
    stats.degenerate = true;
  }
  out.hard_sum_exp = temperature_ == 1 || stats.degenerate ? stats.sum_exp : sums_[kSumHard];
  return out;
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::Answer() {
  if (cluster_.rank() == 0 && threadIdx.x == 0) {
    PairStatistics stats = Statistics();
    PairAnswer answer;
    if (kTopk) {
      answer.topk = shared_->answer.topk;
      stats.divergence = answer.topk.value;
      stats.student_mass = answer.topk.student_mass;
      stats.teacher_mass = answer.topk.teacher_mass;
    } else {
      DivergenceSums<float> sums;
      sums.x = sums_[kSumX];
      sums.y = sums_[kSumY];
      sums.p = sums_[kSumP];
      sums.dot = sums_[kSumX];
      sums.student_square = sums_[kSumY];
      sums.teacher_square = sums_[kSumTeacherSquare];
      answer.value = ValueOf(program_.divergence, sums);
      stats.divergence = answer.value.value;
    }
    answer.coefficients = program_.Row(row_, stats);
    if (in_.live != nullptr) in_.live[r_] = answer.coefficients.IsZero() ? 0 : 1;
    for (int b = 0; b < cluster_.size(); ++b) *cluster_.Of(&shared_->answer, b) = answer;
  }
  cluster_.Sync();
  answer_ = shared_->answer;
  hard_inverse_ = 1.0f / (temperature_ == 1 ? sums_[kSumExp] : sums_[kSumHard]);
}

template <PairMode kMode>
__device__ float PairBlock<kMode>::SoftPart(int c, float student_raw, float teacher_raw) const {
  const DivergenceKind<float>& kind = program_.divergence;
  const PairElement element = StudentAt(student_raw);
  const Outcome<float> q = OutcomeOf(element, student_scale_);
  if constexpr (kTopk) {
    if (q.p == 0) return 0;
    float factor = answer_.topk.dense;
    if (answer_.topk.log_factor != 0) factor += answer_.topk.log_factor * q.log;
    return q.p * factor;
  }
  const PairElement other = TeacherAt(c, teacher_raw);
  if constexpr (kMode == PairMode::kCosine) {
    return answer_.value.by_teacher * other.z + answer_.value.by_student * element.z;
  }
  const Outcome<float> p = OutcomeOf(other, teacher_scale_);
  if (kMode == PairMode::kTvd && student_.kind() == ValueKind::kProbs) return TvdSlope(p.p, q.p);
  DivergenceTerms<float> terms;
  if constexpr (kMode == PairMode::kJsd) {
    // As LogsToMixture, with an absolute error of 1e-7 in the logarithm: enough for a gradient.
    const float d = q.log - p.log;
    const float below = 1.0f - __expf(-fabsf(d));
    const float log =
        d >= 0 ? -logf(1.0f - kind.beta * below) : d - logf(1.0f - (1.0f - kind.beta) * below);
    terms.y = q.p == 0 ? 0.0f : q.p * log;
  } else {
    terms = TermsOf(kind, p, q);
  }
  const float g = SlopeOf(kind, p.p, terms);
  if (IsLogits(student_)) return g - q.p * answer_.value.total;
  return kind.q_factor != 0 ? g + kind.q_factor * q.p : g;
}

// With respect to the logits before the temperature, times the temperature: the derivative of z has its inverse.
template <PairMode kMode>
__device__ float PairBlock<kMode>::HardPart(int c, float z) const {
  const float hard = answer_.coefficients.hard;
  if (hard == 0) return 0;
  const float p = __expf((z - whole_max_) * temperature_) * hard_inverse_;
  return hard * temperature_ * (p - (c == target_ ? 1.0f : 0.0f));
}

template <PairMode kMode>
__device__ float PairBlock<kMode>::Column(int c, float student_raw, float teacher_raw) const {
  const PairCoefficients& k = answer_.coefficients;
  if (c >= student_.columns() || k.IsZero()) return 0;
  float g = HardPart(c, student_.transform()(student_raw));
  if (k.soft != 0 && c < in_.columns) g += k.soft * SoftPart(c, student_raw, teacher_raw);
  return g == 0 ? 0.0f : g * student_.transform().Derivative(student_raw);
}

// The whole gradient of a column that is an entry of the list.
template <PairMode kMode>
__device__ float PairBlock<kMode>::Entry(int64_t id, float raw) const {
  const PairCoefficients& k = answer_.coefficients;
  const float z = student_.transform()(raw);
  float g = HardPart(static_cast<int>(id), z);
  if (k.soft != 0) {
    const float* gradient = cluster_.Of(shared_->entries.gradient, 0);
    const Outcome<float> q = OutcomeOf(StudentAt(raw), student_scale_);
    float sum = q.p == 0 ? 0.0f : q.p * answer_.topk.listed;
    for (int64_t other = 0; other < in_.topk_ids.width; ++other) {
      if (in_.topk_ids.Index(row_, other) == id) sum += gradient[other];
    }
    g += k.soft * sum;
  }
  return g == 0 ? 0.0f : g * student_.transform().Derivative(raw);
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::WriteEntries(float* largest) {
  if (answer_.coefficients.soft == 0) return;
  __syncthreads();
  const float* raw = cluster_.Of(shared_->entries.raw, 0);
  for (int k = threadIdx.x; k < in_.topk_ids.width; k += kPairThreads) {
    const int64_t id = in_.topk_ids.Index(row_, k);
    if (id < begin_ || id >= end_) continue;
    bool first = true;
    for (int before = 0; before < k; ++before) {
      first = first && in_.topk_ids.Index(row_, before) != id;
    }
    if (!first) continue;
    const float g = Entry(id, raw[k]);
    *largest = fmaxf(*largest, fabsf(g));
    StoreOne(static_cast<int>(id), g);
  }
}

template <PairMode kMode>
__device__ void* PairBlock<kMode>::Destination(DType* dtype) const {
  if (in_.grad) {
    *dtype = in_.grad.dtype;
    return RowAddress(in_.grad, row_);
  }
  switch (in_.dz_mode) {
    case DzMode::kF32:
      *dtype = DType::kF32;
      break;
    case DzMode::kBF16:
      *dtype = DType::kBF16;
      break;
    case DzMode::kF16:
      *dtype = DType::kF16;
      break;
    case DzMode::kNone:
    case DzMode::kMeasure:
      *dtype = DType::kUnspecified;
      return nullptr;
  }
  return static_cast<char*>(in_.dz) + r_ * in_.dz_stride * static_cast<int64_t>(SizeOf(*dtype));
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::StoreOne(int j, float g) const {
  DType dtype;
  void* to = Destination(&dtype);
  if (to != nullptr) StoreReal(to, dtype, j, g * scale_);
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::Store(int j, const float* g) const {
  DType dtype;
  void* to = Destination(&dtype);
  if (to == nullptr) return;
  const float scaled[4] = {g[0] * scale_, g[1] * scale_, g[2] * scale_, g[3] * scale_};
  StoreFour(to, dtype, in_.written, j, scaled);
}

template <PairMode kMode>
__device__ void PairBlock<kMode>::WriteGradient() {
  if (in_.dz_mode == DzMode::kNone && !in_.grad) return;
  if (in_.dz_mode == DzMode::kF16) scale_ = *in_.dz_scale;
  float largest = 0;
  // The same count for all threads, for the barrier.
  for (int j0 = begin_; j0 < end_; j0 += kPairStep) {
    const int j = j0 + 4 * static_cast<int>(threadIdx.x);
    float g[4] = {0, 0, 0, 0};
    if (j < end_) {
      const float4 s = student_.Again(j);
      const float4 t = kTopk ? make_float4(0, 0, 0, 0) : teacher_.Again(j);
      g[0] = Column(j, s.x, t.x);
      g[1] = Column(j + 1, s.y, t.y);
      g[2] = Column(j + 2, s.z, t.z);
      g[3] = Column(j + 3, s.w, t.w);
    }
    // In place, dz of these columns falls on values of earlier columns and of these: all must have been read.
    if (!in_.shape.on_chip) __syncthreads();
    if (j >= end_) continue;
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(g[i]));
    Store(j, g);
  }
  if constexpr (kTopk) WriteEntries(&largest);
  if (in_.dz_mode != DzMode::kMeasure) return;
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  }
  if (threadIdx.x % 32 == 0) atomicMax(in_.dz_max, __float_as_uint(largest));
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_KERNEL_CUH_
