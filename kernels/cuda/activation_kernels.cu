#include <type_traits>

#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/pointwise.cuh"

namespace lossd {
namespace {

// Packs of a thread: enough loads in flight to hide the memory's latency, few enough registers for 1024 threads.
constexpr int kForwardPacks = 4;
constexpr int kBackwardPacks = 2;

template <GatedKind kKind, Rounding kTo>
struct GatedFunction {
  static constexpr Rounding kRounding = kTo;
  static constexpr int kInputs = 2;
  static constexpr int kOutputs = 1;
  GatedOptions options;

  __device__ void operator()(const float (&in)[kInputs], float (&out)[kOutputs]) const {
    out[0] = GatedValue<FloatMath, kKind, kRounding>(options, in[0], in[1]);
  }
};

template <GatedKind kKind, Rounding kTo>
struct GatedGradientFunction {
  static constexpr Rounding kRounding = kTo;
  static constexpr int kInputs = 3;
  static constexpr int kOutputs = 2;
  GatedOptions options;

  __device__ void operator()(const float (&in)[kInputs], float (&out)[kOutputs]) const {
    const GatedSlopes<FloatMath> slopes =
        GatedGradient<FloatMath, kKind, kRounding>(options, in[0], in[1], in[2]);
    out[0] = slopes.gate;
    out[1] = slopes.up;
  }
};

struct ReluSquaredFunction {
  static constexpr Rounding kRounding = Rounding::kNone;
  static constexpr int kInputs = 1;
  static constexpr int kOutputs = 1;

  __device__ void operator()(const float (&in)[kInputs], float (&out)[kOutputs]) const {
    out[0] = ReluSquaredValue<FloatMath>(in[0]);
  }
};

struct ReluSquaredGradientFunction {
  static constexpr Rounding kRounding = Rounding::kNone;
  static constexpr int kInputs = 2;
  static constexpr int kOutputs = 1;

  __device__ void operator()(const float (&in)[kInputs], float (&out)[kOutputs]) const {
    out[0] = ReluSquaredGradient<FloatMath>(in[0], in[1]);
  }
};

// f with kind and rounding as compile-time constants.
template <class F>
cudaError_t WithGated(GatedKind kind, Rounding rounding, const F& f) {
  const auto with_rounding = [&](auto known) {
    switch (rounding) {
      case Rounding::kBF16:
        return f(known, std::integral_constant<Rounding, Rounding::kBF16>());
      case Rounding::kF16:
        return f(known, std::integral_constant<Rounding, Rounding::kF16>());
      case Rounding::kNone:
        break;
    }
    return f(known, std::integral_constant<Rounding, Rounding::kNone>());
  };
  switch (kind) {
    case GatedKind::kGeluTanh:
      return with_rounding(std::integral_constant<GatedKind, GatedKind::kGeluTanh>());
    case GatedKind::kGeluErf:
      return with_rounding(std::integral_constant<GatedKind, GatedKind::kGeluErf>());
    case GatedKind::kSilu:
      break;
  }
  return with_rounding(std::integral_constant<GatedKind, GatedKind::kSilu>());
}

Rounding ActivationRounding(const GatedOptions& options, DType type) {
  return options.rounds_activation ? RoundingOf(type) : Rounding::kNone;
}

}  // namespace

cudaError_t LaunchGated(const GatedForward& problem, const RecordTarget& record,
                        cudaStream_t stream, bool* packed) {
  const Rounding rounding = ActivationRounding(problem.options, problem.gate.dtype);
  return WithGated(problem.options.kind, rounding, [&](auto kind, auto known) {
    using Function = GatedFunction<decltype(kind)::value, decltype(known)::value>;
    PointwiseLaunch<Function> launch;
    launch.function.options = problem.options;
    launch.in[0] = problem.gate;
    launch.in[1] = problem.up;
    launch.out[0] = problem.y;
    launch.record = record;
    return LaunchPointwise<Function, kForwardPacks>(launch, problem.rows, problem.width, stream,
                                                    packed);
  });
}

cudaError_t LaunchGatedBackward(const GatedBackward& problem, const RecordTarget& record,
                                cudaStream_t stream, bool* packed) {
  const Rounding rounding = ActivationRounding(problem.options, problem.gate.dtype);
  return WithGated(problem.options.kind, rounding, [&](auto kind, auto known) {
    using Function = GatedGradientFunction<decltype(kind)::value, decltype(known)::value>;
    PointwiseLaunch<Function> launch;
    launch.function.options = problem.options;
    launch.in[0] = problem.gate;
    launch.in[1] = problem.up;
    launch.in[2] = problem.d_y;
    launch.out[0] = problem.grad_gate;
    launch.out[1] = problem.grad_up;
    launch.record = record;
    return LaunchPointwise<Function, kBackwardPacks>(launch, problem.rows, problem.width, stream,
                                                     packed);
  });
}

cudaError_t LaunchReluSquared(const ReluSquaredForward& problem, const RecordTarget& record,
                              cudaStream_t stream, bool* packed) {
  PointwiseLaunch<ReluSquaredFunction> launch;
  launch.in[0] = problem.x;
  launch.out[0] = problem.y;
  launch.record = record;
  return LaunchPointwise<ReluSquaredFunction, kForwardPacks>(launch, problem.rows, problem.width,
                                                             stream, packed);
}

cudaError_t LaunchReluSquaredBackward(const ReluSquaredBackward& problem,
                                      const RecordTarget& record, cudaStream_t stream,
                                      bool* packed) {
  PointwiseLaunch<ReluSquaredGradientFunction> launch;
  launch.in[0] = problem.x;
  launch.in[1] = problem.d_y;
  launch.out[0] = problem.grad_x;
  launch.record = record;
  return LaunchPointwise<ReluSquaredGradientFunction, kForwardPacks>(launch, problem.rows,
                                                                     problem.width, stream, packed);
}

cudaError_t PrepareActivations() {
  cudaError_t error = PreparePointwise<ReluSquaredFunction, kForwardPacks>();
  if (error == cudaSuccess) error = PreparePointwise<ReluSquaredGradientFunction, kForwardPacks>();
  for (const GatedKind kind : {GatedKind::kSilu, GatedKind::kGeluTanh, GatedKind::kGeluErf}) {
    for (const Rounding rounding : {Rounding::kNone, Rounding::kBF16, Rounding::kF16}) {
      if (error != cudaSuccess) return error;
      error = WithGated(kind, rounding, [](auto known_kind, auto known) {
        constexpr GatedKind kKind = decltype(known_kind)::value;
        constexpr Rounding kRounding = decltype(known)::value;
        const cudaError_t forward =
            PreparePointwise<GatedFunction<kKind, kRounding>, kForwardPacks>();
        if (forward != cudaSuccess) return forward;
        return PreparePointwise<GatedGradientFunction<kKind, kRounding>, kBackwardPacks>();
      });
    }
  }
  return error;
}

}  // namespace lossd
