#include "kernels/linear/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

// The rule of an input's elements. False if its elements are not bounded.
bool MakeCheck(const FieldRule& rule, const HeadProblem& head, const TensorView& view,
               ElementCheck* check) {
  check->field = rule.index;
  check->view = MakeRowsView(view, static_cast<int>(rule.dims.size()) - 1);
  if (rule.name == "target" || rule.name == "ids" || rule.name == "teacher_topk_ids") {
    check->rule = ElementRule::kIndex;
    check->low = 0;
    check->high = head.valid_vocab;
    check->padding = rule.name != "target";
    return true;
  }
  if (rule.name == "temperature_rows") {
    check->rule = ElementRule::kAbove;
    check->bound = 0;
    return true;
  }
  if (rule.tensor.has_min_element()) {
    check->rule = ElementRule::kAtLeast;
    check->bound = static_cast<float>(rule.tensor.min_element());
    return true;
  }
  check->rule = ElementRule::kFinite;
  return rule.tensor.finite();
}

absl::Status TooMany(const OpSchema& schema, const char* what) {
  return absl::InternalError(absl::StrCat(schema.name(), ": more ", what, " than a stage holds"));
}

}  // namespace

absl::StatusOr<HeadEngine> HeadEngine::Create(const OpCall& call, Backend& backend,
                                              const HeadProblem& head) {
  HeadEngine engine(call, backend, head);
  LOSSD_ASSIGN_OR_RETURN(engine.record_, engine.Allocate<ResultRecord>(1, "the result record"));
  RowSet& rows = engine.rows_;
  LOSSD_ASSIGN_OR_RETURN(rows.index, engine.Allocate<int32_t>(head.rows, "the row numbers"));
  LOSSD_ASSIGN_OR_RETURN(rows.counted, engine.Allocate<uint8_t>(head.rows, "the row mask"));
  rows.count = &engine.record_->count;
  // Without a mask and ids to ignore every row counts, and nobody has to ask.
  rows.host_count = !head.mask && !head.target ? head.rows : -1;
  return engine;
}

absl::StatusOr<RowStart> HeadEngine::MakeStart() const {
  RowStart start;
  start.record = record_;
  start.host_may_wait = call_->options.host_may_wait;
  LOSSD_RETURN_IF_ERROR(AddChecks(&start));
  LOSSD_RETURN_IF_ERROR(AddFills(&start));
  start.elements.counted = start.sequences.counted = start.fill.counted = rows_.counted;
  start.elements.count = rows_.count;
  start.elements.record = start.sequences.record = record_;
  start.fill.record = record_;
  return start;
}

absl::StatusOr<HeadEngine> HeadEngine::Start(const OpCall& call, Backend& backend,
                                             const HeadProblem& head) {
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, Create(call, backend, head));
  LOSSD_ASSIGN_OR_RETURN(RowStart start, engine.MakeStart());
  ResultRecord found;
  LOSSD_RETURN_IF_ERROR(backend.head->StartRows(head, start, &engine.rows_, &found));
  if (start.host_may_wait) LOSSD_RETURN_IF_ERROR(RecordStatus(*call.schema, found));
  return engine;
}

absl::Status HeadEngine::AddChecks(RowStart* start) const {
  ElementCheckStage& elements = start->elements;
  elements.rows = head_.rows;
  SequenceCheckStage& sequences = start->sequences;
  sequences.rows = head_.rows;
  for (const BoundTensor& bound : call_->binding->tensors()) {
    const FieldRule& rule = *bound.rule;
    if (!rule.is_input()) continue;
    if (rule.name == "cu_seqlens") {
      sequences.cu_seqlens = MakeRowsView(bound.view, 0);
      sequences.sequences = sequences.cu_seqlens.rows - 1;
      sequences.field = rule.index;
      continue;
    }
    ElementCheck check;
    if (!MakeCheck(rule, head_, bound.view, &check)) continue;
    check.always = rule.tensor.every_element();
    check.shared = check.always || (rule.dims[0] != "N" && rule.dims[0] != "B");
    const bool of_sequences = rule.dims[0] == "B" && !check.always;
    const bool fits = of_sequences ? sequences.Add(check) : elements.Add(check);
    if (!fits) return TooMany(*call_->schema, "bounded inputs");
  }
  return absl::OkStatus();
}

absl::Status HeadEngine::AddFills(RowStart* start) const {
  FillStage& fill = start->fill;
  fill.rows = head_.rows;
  for (const BoundTensor& bound : call_->binding->tensors()) {
    const FieldRule& rule = *bound.rule;
    // The sweep itself writes every row of grad_logits.
    if (!rule.is_output() || rule.dims[0] != "N" || rule.name == "grad_logits") continue;
    const Fill value = rule.name == "vocab_stats"    ? Fill::kVocabStats
                       : rule.tensor.units() == "id" ? Fill::kMinusOne
                                                     : Fill::kZero;
    if (!fill.Add(MakeRowsView(bound.view, static_cast<int>(rule.dims.size()) - 1), value)) {
      return TooMany(*call_->schema, "outputs");
    }
  }
  return absl::OkStatus();
}

HeadPass HeadEngine::MakePass(const HeadProblem& head, const RowProgram& program,
                              const HeadOutputs& outputs) const {
  HeadPass pass;
  pass.head = head;
  pass.rows = rows_;
  pass.program = program;
  pass.columns = outputs.columns;
  pass.gradients = outputs.gradients;
  pass.column_weight = outputs.column_weight;
  pass.batch_invariant = call_->options.batch_invariant;
  pass.gradient_filter = call_->options.gradient_filter;
  pass.host_may_wait = call_->options.host_may_wait;
  pass.record = record_;
  return pass;
}

absl::Status HeadEngine::RunHead(const RowProgram& program, const HeadOutputs& outputs) {
  return backend_->head->RunHead(MakePass(head_, program, outputs), &plan_);
}

absl::Status HeadEngine::RunOtherHead(const HeadProblem& head, const RowProgram& program) {
  return backend_->head->RunHead(MakePass(head, program, HeadOutputs()), &plan_);
}

absl::Status HeadEngine::RunHeadTwice(const RowProgram& statistics,
                                      const std::vector<StageRun>& between,
                                      const RowProgram& gradient, const HeadOutputs& outputs) {
  HeadOutputs first = outputs;
  first.gradients = HeadGradients();
  HeadOutputs second = outputs;
  second.columns = RowColumns();
  return backend_->head->RunHeadTwice(MakePass(head_, statistics, first), between,
                                      MakePass(head_, gradient, second), &plan_);
}

absl::Status HeadEngine::RunLoss(const LossCall& loss, std::vector<StageRun> stages) {
  LossRun run;
  run.head = head_;
  LOSSD_ASSIGN_OR_RETURN(run.start, MakeStart());
  run.rows = rows_;
  run.loss = loss;
  run.stages = std::move(stages);
  run.start.host_may_wait = false;
  run.record_copy = call_->options.record_copy;
  run.flat = true;
  for (const BoundTensor& bound : call_->binding->tensors()) {
    const int trailing = static_cast<int>(bound.rule->dims.size()) - 1;
    run.flat = run.flat && MakeRowsView(bound.view, trailing).IsFlat();
  }
  copied_ = true;
  return backend_->head->RunLoss(run);
}

absl::Status HeadEngine::RunPair(PairPass pass) {
  pass.rows = rows_;
  pass.batch_invariant = call_->options.batch_invariant;
  pass.record = record_;
  return backend_->head->RunPair(pass, &plan_);
}

absl::StatusOr<PendingResult> HeadEngine::Finish() {
  if (call_->options.record_copy != nullptr && !copied_) {
    LOSSD_RETURN_IF_ERROR(RunStage(RecordCopyStage{record_, call_->options.record_copy}, 1));
  }
  PendingResult result;
  result.record = record_;
  result.plan = std::move(plan_);
  return result;
}

}  // namespace lossd
