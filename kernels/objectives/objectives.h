// The list of row programs and stages that both backends instantiate. One line for each.
#ifndef LOSSD_KERNELS_OBJECTIVES_OBJECTIVES_H_
#define LOSSD_KERNELS_OBJECTIVES_OBJECTIVES_H_

#include <cstdint>
#include <variant>

#include "kernels/objectives/checks.h"
#include "kernels/objectives/cross_entropy.h"
#include "kernels/objectives/divergence_rows.h"
#include "kernels/objectives/logprob.h"
#include "kernels/objectives/policy.h"
#include "kernels/objectives/policy_select.h"
#include "kernels/objectives/preference.h"
#include "kernels/objectives/sequence_stages.h"
#include "kernels/objectives/statistics_rows.h"
#include "kernels/objectives/unpaired.h"

namespace lossd {

// A row program is a trivially copyable struct with
//   static constexpr bool kKnowsStatistics
//   RowStatistics KnownStatistics(int64_t row) const       if kKnowsStatistics: max and sum_exp (p = exp(z - max) / sum_exp)
//   RowCoefficients Row(int64_t row, const RowStatistics&) const     by one thread, once for each row that counts
// `row` is the row's number in the call, 0 ... N - 1. Outputs of rows that do not count are filled beforehand.
using RowProgram = std::variant<LogprobRows,         //
                                BackwardRows,        //
                                CrossEntropyRows,    //
                                PolicyRows,          //
                                KeepStatisticsRows,  //
                                KeptGradientRows>;

// A stage is a trivially copyable struct with: template <class Team> void Run(Team& team, int64_t instance) const.
using Stage = std::variant<FillStage,               //
                           ElementCheckStage,       //
                           SequenceCheckStage,      //
                           RecordCopyStage,         //
                           LogprobEndStage,         //
                           CrossEntropyStartStage,  //
                           CrossEntropyEndStage,    //
                           DivergenceEndStage,      //
                           PolicySequenceStage,     //
                           PolicyStartStage,        //
                           PolicySelectStage,       //
                           PolicyRowStage,          //
                           PolicyShareStage,        //
                           PolicyEndStage,          //
                           NllMaskStage,            //
                           PreferencePairStage,     //
                           PreferenceRankStage,     //
                           PreferenceValueStage,    //
                           UnpairedSequenceStage,   //
                           SequenceTotalsStage,     //
                           SequenceRowStage,        //
                           SequenceEndStage>;

// A stage and how often it runs.
struct StageRun {
  Stage stage;
  int64_t instances = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_OBJECTIVES_H_
