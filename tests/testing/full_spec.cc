#include "tests/testing/full_spec.h"

#include <map>

namespace lossd {

RequestSpec FullSpec(const std::string& op) {
  static const auto* const kSpecs = new std::map<std::string, RequestSpec>{
      {"LinearLogprob",
       {.inputs = "target mask bias ids",
        .options = "top_k=3 softcap=3 logit_scale=2 valid_vocab=11",
        .outputs =
            "logprob lse entropy lse2 log_sum_p2 argmax correct max_prob mean_logit ids_logprob "
            "topk_ids topk_logprob vocab_stats"}},
      {"LinearLogprobBackward",
       {.inputs =
            "target mask bias ids d_ids_logprob d_logprob entropy d_entropy d_lse d_mean_logit",
        .options = "softcap=3",
        .outputs = "grad_hidden grad_weight grad_bias"}},
      {"LinearCrossEntropy",
       {.inputs = "target mask bias row_weight class_weight d_loss",
        .options = "label_smoothing=0.1 z_loss=0.1 reduction=MEAN denominator=4",
        .outputs = "loss row_loss logprob lse entropy argmax grad_hidden grad_weight grad_bias"}},
      {"LinearPolicyLoss",
       {.inputs = "target mask bias advantage old_logprob ref_logprob sampler_logprob cu_seqlens "
                  "row_weight "
                  "sequence_weight pg_weight sequence_pg_weight entropy_mask d_loss",
        .options = "kind=PPO clip_low=0.2 clip_high=0.3 ratio_cap=3 kl_estimator=K3 kl_coef=0.1 "
                   "entropy_kind=TRUE entropy_coef=0.01 is_level=TOKEN is_mode=TRUNCATE is_max=2 "
                   "off_policy_threshold=1",
        .outputs =
            "loss row_loss ratio importance_weight kl logprob lse entropy grad_hidden grad_weight "
            "grad_bias"}},
      {"PolicyLoss",
       {.inputs = "logprob entropy kl_logprob mask advantage old_logprob ref_logprob "
                  "sampler_logprob cu_seqlens row_weight sequence_weight pg_weight "
                  "sequence_pg_weight entropy_mask cov_selected d_loss",
        .options = "kind=CLIP_COV clip_low=0.2 clip_high=0.3 kl_estimator=K3 kl_coef=0.1 "
                   "entropy_kind=TRUE entropy_coef=0.01 is_level=TOKEN is_mode=TRUNCATE is_max=2 "
                   "off_policy_threshold=1",
        .outputs = "loss row_loss ratio importance_weight kl d_logprob d_entropy d_kl_logprob"}},
      {"LinearPreferenceLoss",
       {.inputs = "target mask bias ref_hidden ref_weight ref_bias pair_weight nll_mask d_loss",
        .options = "pairing=HALVES terms[0].type=SIGMOID terms[0].beta=0.1 terms[0].margin=0.2 "
                   "terms[1].type=IPO terms[1].beta=0.3 terms[1].length_average=true ld_alpha=0.5 "
                   "wpo=true nll_coef=0.5 nll_denominator=4 denominator=2 head_metrics=true",
        .outputs = "loss pair_loss chosen_logp rejected_logp chosen_reward rejected_reward logprob "
                   "lse entropy grad_hidden grad_weight grad_bias"}},
      {"PreferenceLoss",
       {.inputs = "mask log_sum_p2 ref_logprob pair_weight nll_mask d_loss",
        .options = "pairing=INTERLEAVED terms[0].type=BCO_PAIR terms[0].beta=0.1 "
                   "terms[0].bco_delta=0.2 terms[1].type=DISCOPOP terms[1].beta=0.3 "
                   "terms[1].tau=0.1 score=ALPHA_REWARD score_alpha=0.5 wpo=true nll_coef=0.5 "
                   "nll_denominator=4",
        .outputs = "loss pair_loss chosen_logp rejected_logp chosen_reward rejected_reward "
                   "d_logprob"}},
      {"LinearUnpairedLoss",
       {.inputs = "target mask bias ref_sequence_logprob kl_baseline sequence_weight d_loss",
        .options = "type=KTO beta=0.1 desirable_weight=1.5 undesirable_weight=0.5 denominator=2 "
                   "length_average=true head_metrics=true",
        .outputs = "loss sequence_loss sequence_logp reward logprob lse entropy grad_hidden "
                   "grad_weight grad_bias"}},
      {"UnpairedLoss",
       {.inputs = "mask ref_logprob sequence_weight d_loss",
        .options = "type=BCO beta=0.1 bco_delta=0.3 denominator=2",
        .outputs = "loss sequence_loss sequence_logp reward d_logprob"}},
      {"LinearDistillLoss",
       {.inputs = "target mask bias row_weight d_loss teacher_hidden teacher_weight teacher_bias",
        .options = "divergence=JSD beta=0.4 soft_weight=0.5 hard_weight=0.3 temperature=1.5 "
                   "temperature_squared=true softcap=3 teacher_softcap=4 vocab_mismatch=COMMON "
                   "token_loss_min=0 token_loss_max=10 reduction=MEAN denominator=4",
        .outputs = "loss row_loss logprob lse entropy grad_hidden grad_weight grad_bias"}},
      {"KlDivergence",
       {.inputs = "mask row_weight d_loss",
        .options = "student_kind=LOGPROBS teacher_kind=PROBS teacher_floor=0.01 "
                   "temperature_squared=true reduction=MEAN denominator=4",
        .outputs = "loss row_loss grad_student"}},
      {"JensenShannon",
       {.inputs = "mask row_weight d_loss",
        .options = "student_kind=LOGITS teacher_kind=LOGITS beta=0.4 temperature=1.5 "
                   "valid_vocab=9 reduction=MEAN denominator_from=COUNT",
        .outputs = "loss row_loss grad_student"}},
      {"TotalVariation",
       {.inputs = "mask row_weight d_loss",
        .options = "student_kind=PROBS teacher_kind=PROBS valid_vocab=9",
        .outputs = "loss row_loss grad_student"}},
      {"CrossEntropy",
       {.inputs = "target mask row_weight class_weight d_loss",
        .options = "label_smoothing=0.1 z_loss=0.1 reduction=MEAN denominator=4",
        .outputs = "loss row_loss logprob lse entropy argmax grad_logits"}},
      {"Logprob",
       {.inputs = "target mask ids",
        .options = "top_k=3 softcap=3 logit_scale=2 valid_vocab=11",
        .outputs =
            "logprob lse entropy lse2 log_sum_p2 argmax correct max_prob mean_logit ids_logprob "
            "topk_ids topk_logprob vocab_stats"}},
      {"LogprobBackward",
       {.inputs = "target mask ids d_ids_logprob d_logprob entropy d_entropy d_lse d_mean_logit",
        .options = "softcap=3",
        .outputs = "grad_logits"}},
      {"RmsNorm",
       {.inputs = "residual weight",
        .options = "eps=0.001 weight_offset=1 casting=GEMMA",
        .outputs = "y residual_out rstd"}},
      {"RmsNormBackward",
       {.inputs = "weight d_residual_out",
        .options = "eps=0.001 weight_offset=1 casting=GEMMA",
        .outputs = "grad_x grad_weight"}},
      {"LayerNorm", {.inputs = "weight bias", .options = "eps=0.001", .outputs = "y mean rstd"}},
      {"LayerNormBackward",
       {.inputs = "weight mean rstd", .options = "", .outputs = "grad_x grad_weight grad_bias"}},
      {"Rope",
       {.inputs = "position", .options = "layout=INTERLEAVED rotary_dim=6", .outputs = "y"}},
      {"RopeBackward",
       {.inputs = "position", .options = "layout=HALF_SPLIT rotary_dim=6", .outputs = "grad_x"}},
      {"Swiglu",
       {.inputs = "gate up",
        .options = "gate_scale=0.5 down_scale=2 round_activation=true",
        .outputs = "y"}},
      {"SwigluBackward",
       {.inputs = "gate_up",
        .options = "gate_scale=0.5 down_scale=2 round_activation=true",
        .outputs = "grad_gate_up"}},
      {"Geglu",
       {.inputs = "gate_up", .options = "approximation=ERF round_activation=true", .outputs = "y"}},
      {"GegluBackward",
       {.inputs = "gate up",
        .options = "approximation=ERF round_activation=true",
        .outputs = "grad_gate grad_up"}},
      {"ReluSquared", {.inputs = "", .options = "", .outputs = "y"}},
      {"ReluSquaredBackward", {.inputs = "", .options = "", .outputs = "grad_x"}},
      {"Softmax", {.inputs = "mask", .options = "", .outputs = "y"}},
      {"SoftmaxBackward", {.inputs = "mask", .options = "", .outputs = "grad_x"}}};
  const auto found = kSpecs->find(op);
  RequestSpec spec = found == kSpecs->end() ? RequestSpec() : found->second;
  spec.op = op;
  return spec;
}

}  // namespace lossd
