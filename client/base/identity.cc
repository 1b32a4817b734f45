#include "base/identity.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/settings.h"
#include "base/utf8.h"

namespace railhead::client {

namespace {

struct Fact {
  const char* variable;
  bool tells;  // two jobs have different values; any one such fact is enough
};

// The environment variables by which a launcher tells a process its rank, and by which two of its jobs differ.
struct Launcher {
  const char *name, *rank, *world;
  Fact facts[3];
};

// A launcher whose ranks may be started inside another's comes first: such ranks have the variables of both. RANK is torchrun's, and the
// convention of most others.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", {{"TORCHELASTIC_RUN_ID", false}, {"MASTER_ADDR", false}, {"MASTER_PORT", true}}},
    // The number of an Open MPI 4 job has 16 random bits; its key (precondition_transports) has 128, but Open MPI 5 sets none.
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {{"PMIX_NAMESPACE", true}, {"OMPI_MCA_orte_precondition_transports", false}}},
    // Slurm's PMI-2 sets the first, Intel MPI the second, MPICH neither.
    {"pmi", "PMI_RANK", "PMI_SIZE", {{"PMI_JOBID", true}, {"I_MPI_HYDRA_UUID", true}}},
    // A batch script has a SLURM_PROCID too, but neither a step nor a number of its tasks.
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {{"SLURM_JOB_ID", false}, {"SLURM_STEP_ID", true}}},
};
constexpr char kRankVariables[] = "$RANK, $OMPI_COMM_WORLD_RANK, $PMI_RANK or $SLURM_PROCID";

const Launcher* findLauncher() {
  for (const Launcher& l : kLaunchers) {
    if (environment(l.rank) != nullptr || environment(l.world) != nullptr) return &l;
  }
  return nullptr;
}

rh_result readNumber(int32_t configured, const Launcher* launcher, const char* Launcher::*variable, const char* what, int32_t* out) {
  *out = configured;
  if (configured != -1) return RH_OK;
  if (launcher == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: no %s: set it in the config, or start the ranks with a launcher that sets %s "
                "(`railhead run`, torchrun, mpirun, srun)", what, kRankVariables);
  }
  const char* text = environment(launcher->*variable);
  if (text == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: no %s: $%s is set, but not $%s; set it, or the %s in the config", what,
                variable == &Launcher::rank ? launcher->world : launcher->rank, launcher->*variable, what);
  }
  long value;
  if (!parseInt(text, 0, 1 << 20, &value)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: %s=%.40s is no %s; set it to a number, or the %s in the config", launcher->*variable, text, what,
                what);
  }
  *out = static_cast<int32_t>(value);
  return RH_OK;
}

// Letters, digits and what addresses and numbers of jobs contain. No slash, which separates facts.
bool plain(const char* text) {
  for (; *text != '\0'; text++) {
    const char c = *text;
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && strchr(".:_@-", c) == nullptr) return false;
  }
  return true;
}

// FNV-1a of the text and its NUL.
uint64_t hash(uint64_t h, const char* text) {
  do {
    h = (h ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  } while (*text++ != '\0');
  return h;
}

// The name of the launcher's job: the launcher and the facts, e.g. slurm/1234/0, or a hash of facts that do not fit. false: nothing tells it
// from another job.
bool nameJob(const Launcher& launcher, char (&out)[RHW_NAME]) {
  bool told = false, fits = true;
  uint64_t h = 0xcbf29ce484222325;
  size_t used = static_cast<size_t>(snprintf(out, sizeof out, "%s", launcher.name));
  int slashes = 0;  // not yet written: none follows the last fact that is set
  for (const Fact& fact : launcher.facts) {
    if (fact.variable == nullptr) break;
    const char* value = environment(fact.variable);
    slashes++;
    h = hash(h, value != nullptr ? value : "");
    if (value == nullptr) continue;
    told = told || fact.tells;
    fits = fits && plain(value) && used + static_cast<size_t>(slashes) + strlen(value) < sizeof out;
    if (fits) used += static_cast<size_t>(snprintf(out + used, sizeof out - used, "%.*s%s", slashes, "///", value));
    slashes = 0;
  }
  if (!fits) snprintf(out, sizeof out, "%s/%016llx", launcher.name, static_cast<unsigned long long>(h));
  return told;
}

rh_result nothingTellsJobsApart(const Launcher* launcher, int32_t rank) {
  constexpr char kCure[] = "so two jobs could form one group: set RAILHEAD_GROUP, the same on all ranks of this job and different in every "
                           "other job, or name the group in the config";
  if (launcher == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: rank %d: no group is named, and there is no launcher's %s, %s", rank, kRankVariables, kCure);
  }
  const char* names[2] = {nullptr, nullptr};
  int n = 0;
  for (const Fact& fact : launcher->facts) {
    if (fact.tells && n < 2) names[n++] = fact.variable;
  }
  return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: rank %d: no group is named, and $%s comes without $%s%s%s, %s", rank, launcher->rank, names[0],
              n > 1 ? " or $" : "", n > 1 ? names[1] : "", kCure);
}

// A name or token of at most 63 bytes of UTF-8.
rh_result shortString(const char* text, const char* what, char (&out)[RHW_NAME]) {
  const size_t length = strlen(text);
  if (length >= sizeof out) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: the %s has %zu bytes, at most %zu are allowed: %.16s...", what, length, sizeof out - 1, text);
  }
  if (!validUtf8(text, length)) return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: the %s is not UTF-8", what);
  memset(out, 0, sizeof out);
  memcpy(out, text, length);
  return RH_OK;
}

}  // namespace

rh_result identify(const rh_comm_config& config, Identity* out) {
  const Launcher* launcher = findLauncher();
  rh_result r = readNumber(config.rank, launcher, &Launcher::rank, "rank", &out->rank);
  if (r == RH_OK) r = readNumber(config.world_size, launcher, &Launcher::world, "world size", &out->world);
  if (r != RH_OK) return r;
  char job[RHW_NAME] = "";
  const bool told = launcher != nullptr && nameJob(*launcher, job);
  const char* group = config.group != nullptr ? config.group : environment("RAILHEAD_GROUP");
  if (group == nullptr && !told) return nothingTellsJobsApart(launcher, out->rank);
  r = shortString(group != nullptr ? group : job, "group name", out->group);
  if (r == RH_OK && out->group[0] == '\0') r = fail(RH_ERR_INVALID_ARGUMENT, "comm_init: the group name is empty");
  if (r != RH_OK) return r;
  // By default the job is the token too, so that two jobs that name a group alike are told so.
  const char* token = config.token != nullptr ? config.token : environment("RAILHEAD_TOKEN");
  return shortString(token != nullptr ? token : told ? job : "", "token", out->token);
}

}  // namespace railhead::client
