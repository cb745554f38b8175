// lossctl: asks a lossd server, or tries one out.
#include <iostream>
#include <string>
#include <vector>

#include "client/ctl/commands.h"

namespace lossd::ctl {
namespace {

int Main(int argc, char** argv) {
  const std::vector<Command> commands = {StatusCommand(),     OpsCommand(),     DoctorCommand(),
                                         EvalCommand(),       ExplainCommand(), TuneCommand(),
                                         ConformanceCommand()};
  const std::string name = argc > 1 ? argv[1] : "";
  if (name.empty() || name == "--help" || name == "-h" || name == "help") {
    std::ostream& out = name.empty() ? std::cerr : std::cout;
    out << "lossctl COMMAND ...; without --target a private server is started from the lossd "
           "beside lossctl.\n\n";
    for (const Command& command : commands) out << HelpText(command.usage) << "\n";
    return name.empty() ? 2 : 0;
  }
  for (const Command& command : commands) {
    if (name != command.usage.command) continue;
    const auto arguments =
        ParseArguments(command.usage, std::vector<std::string>(argv + 2, argv + argc));
    if (!arguments.ok()) {
      std::cerr << "lossctl " << name << ": " << arguments.status().message() << "\n";
      return 2;
    }
    if (arguments->help) {
      std::cout << HelpText(command.usage);
      return 0;
    }
    return command.run(*arguments);
  }
  std::cerr << "lossctl: no command " << name << "; see lossctl --help\n";
  return 2;
}

}  // namespace
}  // namespace lossd::ctl

int main(int argc, char** argv) { return lossd::ctl::Main(argc, argv); }
