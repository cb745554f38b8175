// The commands of lossctl. Each takes its words and flags and returns the exit code: 0 well, 1 not, 2 asked wrongly.
#ifndef LOSSD_CLIENT_CTL_COMMANDS_H_
#define LOSSD_CLIENT_CTL_COMMANDS_H_

#include "client/ctl/flags.h"

namespace lossd::ctl {

struct Command {
  Usage usage;
  int (*run)(const Arguments& arguments);
};

Command StatusCommand();
Command OpsCommand();
Command DoctorCommand();
Command EvalCommand();
Command ExplainCommand();
Command TuneCommand();
Command ConformanceCommand();

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_COMMANDS_H_
