// How a call begins on a device: which rows count, whether their data are legal, what the others' outputs become. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LINEAR_ROW_START_H_
#define LOSSD_KERNELS_LINEAR_ROW_START_H_

#include "kernels/core/result_record.h"
#include "kernels/objectives/checks.h"

namespace lossd {

struct RowStart {
  ElementCheckStage elements;
  SequenceCheckStage sequences;
  FillStage fill;
  ResultRecord* record = nullptr;
  // The host learns of wrong data, and of the number of rows, before it goes on; without it the device goes on by itself.
  bool host_may_wait = true;

  bool checks() const { return elements.Instances() + sequences.Instances() > 0; }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_ROW_START_H_
