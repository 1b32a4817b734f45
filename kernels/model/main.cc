// The model target's program: runs the protocols of include/ in the model and reports the result.
//
//   --list                    scenarios and mutants, separated by tabs
//   --scenario NAME           the scenario to run
//   --seeds FROM:COUNT        seeds of a random scenario (default 0:2000)
//   --seed N                  one seed
//   --mutant K                applies mistake number K (default: RH_MUTANT)
//   --change CHANGE           weakens an order of the protocols (orders.h)
//   --changes                 after a run, prints all changes of the orders that were executed
//   --litmus PROGRAM          prints every outcome of a litmus program (litmus_run.h)
//   --trace                   prints the interleaving of a failed run; with --seed N, of any run
// Exit status: 0 all runs passed, 1 a run failed, 2 usage.
#ifndef RH_MODEL
#error "build with -DRH_MODEL"
#endif

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <set>
#include <string>

#include "model/litmus_run.h"
#include "model/mutants.h"
#include "model/scenarios.h"

namespace railhead::model {
namespace {

struct Outcome {
  End end;
  std::string failure, trace;
  int steps;
  bool marked;
};

template <class Run, class Shape>
Outcome runShape(const Shape& shape, Choices& choices, bool trace, bool coarse) {
  World world(choices, trace, coarse);
  Run run(world, shape);
  const End end = world.run();
  std::string failure = world.failure();
  if (end == End::kPassed) failure = run.check();
  return {failure.empty() ? end : End::kFailed, failure, world.traceText(), world.steps(), world.isMarked()};
}

constexpr int kMaxFibers = 64;

Outcome runSeed(const Scenario& s, uint64_t seed, bool trace) {
  Random random(mix(seed, 77));
  RandomChoices choices(seed, kMaxFibers);
  if (s.packets != nullptr) return runShape<PacketRun>(s.packets(random), choices, trace, false);
  if (s.records != nullptr) return runShape<RecordRun>(s.records(random), choices, trace, false);
  if (s.ep != nullptr) return runShape<EpRun>(s.ep(random), choices, trace, false);
  if (s.gpu != nullptr) return runShape<GpuRun>(s.gpu(random), choices, trace, false);
  if (s.gpuEp != nullptr) return runShape<GpuEpRun>(s.gpuEp(random), choices, trace, false);
  if (s.lanes != nullptr) return runShape<LaneRun>(s.lanes(random), choices, trace, false);
  if (s.streams != nullptr) return runShape<StreamRun>(s.streams(random), choices, trace, false);
  return runShape<FlagRun>(s.flags(random), choices, trace, false);
}

// The mistake that the run has, as arguments.
std::string mistake(const std::string& change) {
  if (!change.empty()) return "--change '" + change + "'";
  return "--mutant " + std::to_string(static_cast<int>(modelMutant));
}

struct Options {
  const Scenario* scenario = nullptr;
  uint64_t from = 0, count = 2000;
  bool seeds = false, oneSeed = false, trace = false, changes = false;
  std::string change;
};

int runSeeds(const Options& o) {
  uint64_t steps = 0, marked = 0;
  for (uint64_t seed = o.from; seed < o.from + o.count; seed++) {
    Outcome out = runSeed(*o.scenario, seed, o.oneSeed && o.trace);
    steps += static_cast<uint64_t>(out.steps);
    marked += out.marked;
    if (out.end == End::kFailed && o.trace && !o.oneSeed) out = runSeed(*o.scenario, seed, true);
    if (o.trace && !out.trace.empty()) printf("%s\n", out.trace.c_str() + 1);
    if (out.end != End::kFailed) continue;
    const std::string with = mistake(o.change);
    printf("FAIL %s, %s, seed %lu, step %d: %s\n", o.scenario->name, with.c_str(), seed, out.steps, out.failure.c_str());
    printf("replay with: --scenario %s %s --seed %lu --trace\n", o.scenario->name, with.c_str(), seed);
    return 1;
  }
  printf("ok %s: %lu seeds, %lu steps", o.scenario->name, o.count, steps);
  if (marked != 0) printf(", in %lu seeds a rank gave another up", marked);
  printf("\n");
  return 0;
}

template <class Run, class Shape>
int runAll(const Options& o, const Shape& shape, bool coarse) {
  AllChoices choices;
  uint64_t runs = 0, passed = 0;
  do {
    runs++;
    Outcome out = runShape<Run>(shape, choices, false, coarse);
    passed += out.end == End::kPassed;
    if (out.end != End::kFailed) continue;
    if (o.trace) {
      choices.rewind();
      out = runShape<Run>(shape, choices, true, coarse);
      printf("%s\n", out.trace.c_str() + 1);
    }
    const std::string with = mistake(o.change);
    printf("FAIL %s, %s, run %lu, step %d: %s\n", o.scenario->name, with.c_str(), runs, out.steps, out.failure.c_str());
    printf("replay with: --scenario %s %s --trace\n", o.scenario->name, with.c_str());
    return 1;
  } while (choices.advance());
  printf("ok %s: all %zu states, %lu runs, %lu of them reached a new end state\n", o.scenario->name, choices.states(), runs, passed);
  return 0;
}

int litmus(const std::string& text) {
  LitmusProgram program;
  if (!program.parse(text)) {
    fprintf(stderr, "model: no litmus program: %s\n", text.c_str());
    return 2;
  }
  AllChoices choices;
  std::set<std::string> outcomes;
  do {
    World world(choices, false, false);
    LitmusRun run(world, program);
    if (world.run() == End::kPassed) outcomes.insert(run.outcome());
  } while (choices.advance());
  for (const std::string& o : outcomes) printf("%s\n", o.c_str());
  return 0;
}

int list() {
  for (const Scenario& s : scenarios()) printf("scenario\t%s\t%s\t%s\n", s.name, s.isLarge ? "large" : s.exhaustive ? "all" : "seeds", s.says);
  for (const MutantEntry& m : kMutants) printf("mutant\t%d\t%s\t%s\n", static_cast<int>(m.mutant), m.scenario, m.says);
  return 0;
}

int usage(const char* what, const char* value) {
  fprintf(stderr, "model: %s %s\nusage: model --list | --litmus PROGRAM | --scenario NAME [--seeds FROM:COUNT | --seed N] [--mutant K] [--trace]\n", what, value);
  return 2;
}

bool parseNumber(const char* text, uint64_t* value, char end = 0) {
  char* rest;
  errno = 0;
  *value = strtoull(text, &rest, 10);
  return errno == 0 && rest != text && *rest == end && *text != '-';
}

int runScenario(const Options& o) {
  if (!o.scenario->exhaustive || o.seeds) return runSeeds(o);
  Random unused(0);
  if (o.scenario->packets != nullptr) return runAll<PacketRun>(o, o.scenario->packets(unused), true);
  if (o.scenario->records != nullptr) return runAll<RecordRun>(o, o.scenario->records(unused), false);
  if (o.scenario->ep != nullptr) return runAll<EpRun>(o, o.scenario->ep(unused), false);
  if (o.scenario->gpu != nullptr) return runAll<GpuRun>(o, o.scenario->gpu(unused), false);
  if (o.scenario->gpuEp != nullptr) return runAll<GpuEpRun>(o, o.scenario->gpuEp(unused), false);
  if (o.scenario->streams != nullptr) return runAll<StreamRun>(o, o.scenario->streams(unused), false);
  return runAll<FlagRun>(o, o.scenario->flags(unused), false);
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i++) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      return list();
    }
    if (flag == "--trace") {
      o.trace = true;
      continue;
    }
    if (flag == "--changes") {
      o.changes = true;
      Orders::collect();
      continue;
    }
    if (i + 1 == argc) return usage("no value for", argv[i]);
    const char* value = argv[++i];
    uint64_t number = 0;
    if (flag == "--litmus") return litmus(value);
    if (flag == "--scenario") {
      o.scenario = findScenario(value);
      if (o.scenario == nullptr) return usage("no scenario", value);
    } else if (flag == "--seeds") {
      const char* colon = strchr(value, ':');
      if (colon == nullptr || !parseNumber(value, &o.from, ':') || !parseNumber(colon + 1, &o.count)) return usage("want FROM:COUNT, not", value);
      o.seeds = true;
    } else if (flag == "--seed") {
      if (!parseNumber(value, &o.from)) return usage("no seed", value);
      o.count = 1;
      o.seeds = true;
      o.oneSeed = true;
    } else if (flag == "--change") {
      o.change = value;
      Orders::change(value);
    } else if (flag == "--mutant") {
      if (!parseNumber(value, &number)) return usage("no mutant", value);
      bool known = number == 0;
      for (const MutantEntry& m : kMutants) known = known || static_cast<uint64_t>(m.mutant) == number;
      if (!known) return usage("no mutant", value);
      modelMutant = static_cast<Mutant>(number);
    } else {
      return usage("unknown flag", argv[i - 1]);
    }
  }
  if (o.scenario == nullptr) return usage("no", "--scenario");
  const int status = runScenario(o);
  for (const std::string& c : Orders::changes()) printf("change\t%s\n", c.c_str());
  return status;
}

}  // namespace
}  // namespace railhead::model

int main(int argc, char** argv) { return railhead::model::run(argc, argv); }
