// The commands of lossctl that plan and measure, as a user runs them: what they print, and how they end.
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace lossd {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code = -1;
  std::string text;  // standard output and error
};

// A program of the build, by its name and flags.
Ended RunCommand(const std::string& command) {
  char self[PATH_MAX] = {};
  EXPECT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  const std::string path = self;
  FILE* pipe = popen(
      absl::StrCat(path.substr(0, path.rfind('/') + 1), command, " </dev/null 2>&1").c_str(), "r");
  Ended ended;
  if (pipe == nullptr) return ended;
  char buffer[4096];
  for (size_t read = 0; (read = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    ended.text.append(buffer, read);
  }
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

std::string TemporaryFile(const char* name) {
  return absl::StrCat(::testing::TempDir(), "/lossctl_test-", getpid(), "-", name);
}

TEST(LossctlExplainTest, SaysPlanCostAndMemory) {
  const Ended ended = RunCommand(
      "lossctl explain LinearCrossEntropy --backend cpu --threads 2 --workspace 4G --rows 512 "
      "--hidden 64 --vocab 1000 --model-dtype f32");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(
      ended.text,
      AllOf(HasSubstr(
                "N 512, H 64, V 1000; hidden, weight, target -> loss, grad_hidden, grad_weight"),
            HasSubstr("cpu, 2 threads, workspace 4294967296 bytes"),
            HasSubstr("plan           rows=512/512 chunks=1x512 "),
            HasSubstr("products       6 NHV: logits 2, grad_hidden 2, grad_weight 2\n"),
            HasSubstr("grad_weight: the products add to the destination"),
            ContainsRegex(" 2064384 bytes  logits\n"), ContainsRegex("kept +[0-9]+ bytes  "),
            Not(HasSubstr("not faster"))));
}

TEST(LossctlExplainTest, SaysWhyItIsNotFaster) {
  const Ended ended = RunCommand(
      "lossctl explain LinearCrossEntropy --backend cpu --workspace 64M --rows 5000 "
      "--option label_smoothing=0.1 --with bias,lse --without grad_hidden --dtype grad_weight=f32 "
      "--batch-invariant --gradient-filter 1e-4");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(
      ended.text,
      AllOf(HasSubstr("hidden, weight, bias, target -> loss, lse, grad_weight, grad_bias"),
            ContainsRegex("products +4\\.[0-9]* NHV: logits 2.*, grad_weight 2"),
            ContainsRegex("not faster +batch_invariant: "),
            HasSubstr("gradient_filter: no block is left out on the cpu"),
            HasSubstr("weight: is not fp32"), HasSubstr("workspace: holds the logits of ")));
}

// The server says which fields are missing.
TEST(LossctlExplainTest, AddsTheTensorsThatTheOptionsNeed) {
  const Ended backward = RunCommand(
      "lossctl explain LinearLogprobBackward --backend cpu --rows 64 --hidden 64 --vocab 100");
  EXPECT_EQ(backward.code, 0) << backward.text;
  EXPECT_THAT(backward.text, AllOf(HasSubstr("target"), HasSubstr("d_logprob")));
  const Ended policy = RunCommand(
      "lossctl explain LinearPolicyLoss --backend cpu --rows 64 --hidden 64 --vocab 100 --extent "
      "B=4 --option kind=PPO --option clip_low=0.2 --option clip_high=0.2 --option kl_estimator=K3 "
      "--option kl_coef=0.1");
  EXPECT_EQ(policy.code, 0) << policy.text;
  EXPECT_THAT(policy.text, AllOf(HasSubstr("ref_logprob"), HasSubstr("products       6 NHV")));
  const Ended preference = RunCommand(
      "lossctl explain LinearPreferenceLoss --backend cpu --rows 64 --hidden 64 --vocab 100 "
      "--option pairing=HALVES --option reference_free=true "
      "--option 'terms=[{\"type\":\"SIGMOID\",\"beta\":0.1}]'");
  EXPECT_EQ(preference.code, 0) << preference.text;
  EXPECT_THAT(preference.text,
              AllOf(HasSubstr("sweep          2 of 2"), HasSubstr("multiplied again"),
                    HasSubstr("in all         8 NHV")));
  const Ended pair = RunCommand(
      "lossctl explain KlDivergence --backend cpu --rows 64 --vocab 100 --option "
      "student_kind=LOGITS --option teacher_kind=LOGITS");
  EXPECT_EQ(pair.code, 0) << pair.text;
  EXPECT_THAT(pair.text, HasSubstr("no products"));
}

#if defined(LOSSD_HAVE_CUDA)
TEST(LossctlExplainTest, PlansForAGpuThatIsNotHere) {
  const Ended hopper =
      RunCommand("lossctl explain LinearCrossEntropy --backend cuda --workspace 16G");
  EXPECT_EQ(hopper.code, 0) << hopper.text;
  EXPECT_THAT(hopper.text,
              AllOf(HasSubstr("cuda, compute capability 9.0, workspace 17179869184 bytes"),
                    HasSubstr("chunks=1x8192 products=bf16 epilogue=exp grad_weight=direct"),
                    HasSubstr("products       6 NHV"), Not(HasSubstr("not faster"))));
  const Ended smooth = RunCommand(
      "lossctl explain LinearCrossEntropy --backend cuda --option label_smoothing=0.1 --enqueued");
  EXPECT_THAT(smooth.text, HasSubstr("not faster     label_smoothing: needs the logits again"));
  const Ended ampere =
      RunCommand("lossctl explain LinearCrossEntropy --backend cuda --compute-capability 8.0");
  EXPECT_THAT(ampere.text, HasSubstr("compute capability: is not 9.0"));
}
#else
TEST(LossctlExplainTest, SaysThatThisBuildHasNoCuda) {
  const Ended ended = RunCommand("lossctl explain LinearCrossEntropy --backend cuda");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("has no CUDA"));
}
#endif

TEST(LossctlExplainTest, RefusesByFlagAndByField) {
  const struct {
    const char* flags;
    int code;
    const char* text;
  } cases[] = {
      {"", 2, "needs OP"},
      {"NoOp", 2, "no operation NoOp"},
      {"LinearCrossEntropy --rows 0", 2, "--rows: must be an integer from 1 "},
      {"LinearCrossEntropy --extent Z=3", 2, "--extent: must be of one of N, H, V"},
      {"LinearCrossEntropy --extent B", 2, "--extent: must be NAME=VALUE"},
      {"LinearCrossEntropy --option speed=9", 2, "has no option speed"},
      {"LinearCrossEntropy --with speed", 2, "has no tensor speed"},
      {"LinearCrossEntropy --dtype grad_weight=f64", 2, "--dtype: must be f32, "},
      {"LinearCrossEntropy --model-dtype i32", 2, "--model-dtype: must be f32, bf16 or f16"},
      {"LinearCrossEntropy --workspace lots", 2, "--workspace: must be "},
      {"LinearCrossEntropy --compute-capability 9", 2, "--compute-capability: must be MAJOR.MINOR"},
      {"LinearCrossEntropy --rows 8 --rows 9", 2, "--rows: given twice"},
      {"LinearCrossEntropy --backend tpu", 1, "backend: must be cpu or cuda, is tpu"},
      {"LinearCrossEntropy --backend cpu --compute-capability 9.0", 1, "compute_capability: "},
      {"LinearCrossEntropy --backend cpu --enqueued", 1, "completion: must be DONE"},
      {"LinearCrossEntropy --backend cpu --gradient-filter 2", 1, "gradient_filter: must be in"},
      {"LinearCrossEntropy --backend cpu --workspace 1K", 1, "RESOURCE_EXHAUSTED"},
      {"LinearCrossEntropy --backend cpu --option softcap=-1", 1, "softcap: must be"},
      {"LinearCrossEntropy --backend cpu --with grad_bias", 1, "bias"},
  };
  for (const auto& [flags, code, text] : cases) {
    const Ended ended = RunCommand(absl::StrCat("lossctl explain ", flags));
    EXPECT_EQ(ended.code, code) << flags << ": " << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(text)) << flags;
  }
}

TEST(LossctlTuneTest, RefusesWithoutAGpuAndLeavesNothing) {
  const std::string file = TemporaryFile("table");
  // CUDA_VISIBLE_DEVICES is the driver's own: no GPU, wherever this runs.
  setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  const Ended ended =
      RunCommand(absl::StrCat("lossctl tune ", file, " --rows 64 --hidden 64 --vocab 100"));
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(ended.code, 1) << ended.text;
#if defined(LOSSD_HAVE_CUDA)
  EXPECT_THAT(ended.text, HasSubstr("no GPU that this process can use"));
#else
  EXPECT_THAT(ended.text, HasSubstr("this build, which has no CUDA"));
#endif
  for (const char* suffix : {"", ".partial"}) {
    EXPECT_NE(access(absl::StrCat(file, suffix).c_str(), F_OK), 0) << suffix;
  }
}

TEST(LossctlTuneTest, RefusesShapesThatAreNone) {
  const struct {
    const char* json;
    const char* text;
  } cases[] = {
      {"", "must be a JSON list of shapes"},
      {"{}", "must be a JSON list of shapes"},
      {"[]", "must be a JSON list of shapes"},
      {"[8192]", "[0]: must be an object"},
      {"[{\"rows\": 64}, {\"rows\": 0}]", "[1].rows: must be an integer from 1 "},
      {"[{\"rows\": 1.5}]", "[0].rows: must be an integer from 1 "},
      {"[{\"columns\": 64}]", "[0].columns: must be rows, hidden, vocab"},
      {"[{\"dtype\": \"u8\"}]", "[0].dtype: must be f32, bf16 or f16, is u8"},
      {"[{\"dtype\": 16}]", "[0].dtype: must be rows, hidden, vocab"},
  };
  const std::string file = TemporaryFile("shapes.json");
  for (const auto& [json, text] : cases) {
    std::ofstream(file) << json;
    const Ended ended = RunCommand(absl::StrCat("lossctl tune unused --shapes ", file));
    EXPECT_EQ(ended.code, 2) << json;
    EXPECT_THAT(ended.text, HasSubstr(text)) << json;
  }
  std::remove(file.c_str());
  EXPECT_EQ(RunCommand("lossctl tune unused --rounds 0").code, 2);
  EXPECT_EQ(RunCommand("lossctl tune").code, 2);
  EXPECT_EQ(RunCommand(absl::StrCat("lossctl tune unused --shapes ", file)).code, 2);
}

TEST(LossdAlgorithmsTest, TheCpuBackendRefusesATable) {
  const Ended ended = RunCommand(absl::StrCat(
      "lossd --backend cpu --listen unix:", TemporaryFile("x.sock"), " --algorithms table.txt"));
  EXPECT_EQ(ended.code, 2) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("--algorithms: must be absent on the cpu backend"));
}

TEST(LossctlHelpTest, NamesEveryCommand) {
  const Ended ended = RunCommand("lossctl help");
  EXPECT_EQ(ended.code, 0);
  for (const char* command : {"explain OP", "tune FILE", "eval", "doctor", "status", "ops"}) {
    EXPECT_THAT(ended.text, HasSubstr(absl::StrCat("lossctl ", command)));
  }
}

}  // namespace
}  // namespace lossd
