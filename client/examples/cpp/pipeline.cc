// Pipeline and tensor parallelism together. Each stage has two ranks. A stage's layer is split over its ranks (all-reduce in the comm
// `tensor`), and its output goes to the next stage (send and receive in the comm `pipe`). A stage sends a batch while it receives the
// next one.
//
//   railhead run --daemon -n 4 -- ./pipeline
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "railhead.h"

constexpr int kTensor = 2, kBatches = 8, kWidth = 64;

void check(rh_result result) {
  if (result != RH_OK) throw std::runtime_error(std::string(rh_result_string(result)) + ": " + rh_last_error_message());
}

struct CloseSession {
  void operator()(rh_session* session) const { rh_close(session); }
};
struct FinalizeComm {
  void operator()(rh_comm* comm) const {
    if (std::uncaught_exceptions() > 0) rh_comm_abort(comm);  // the other ranks fail now instead of at their deadline
    rh_comm_finalize(comm);
  }
};
using Session = std::unique_ptr<rh_session, CloseSession>;
using Comm = std::unique_ptr<rh_comm, FinalizeComm>;

Session connect() {
  rh_session* session = nullptr;
  check(rh_connect(nullptr, &session));
  return Session(session);
}

Comm join(const Session& session) {
  rh_comm* comm = nullptr;
  check(rh_comm_init(session.get(), nullptr, &comm));
  return Comm(comm);
}

Comm split(const Comm& comm, int color, int key) {
  rh_comm* part = nullptr;
  check(rh_comm_split(comm.get(), color, key, &part));
  return Comm(part);
}

int rankOf(const Comm& comm) {
  int32_t rank = -1;
  check(rh_comm_rank(comm.get(), &rank));
  return rank;
}

int sizeOf(const Comm& comm) {
  int32_t size = -1;
  check(rh_comm_world_size(comm.get(), &size));
  return size;
}

using Vector = std::vector<float>;

Vector batchNumber(int n) {
  Vector x(kWidth);
  for (int i = 0; i < kWidth; i++) x[i] = static_cast<float>((n + i) % 11);
  return x;
}

// The product with columns [begin, end) of the stage's layer. Small integers, so that every sum is exact.
Vector multiply(const Vector& x, int stage, int begin, int end) {
  Vector y(kWidth);
  for (int row = 0; row < kWidth; row++) {
    for (int column = begin; column < end; column++) y[row] += static_cast<float>((row + 2 * column + stage) % 5 - 1) * x[column];
  }
  return y;
}

void activate(Vector& y) {
  for (float& v : y) v = std::fmod(v, 17.0F);
}

Vector runStage(const Vector& x, int stage, const Comm& tensor) {
  const int rank = rankOf(tensor);
  Vector y = multiply(x, stage, kWidth * rank / kTensor, kWidth * (rank + 1) / kTensor);
  check(rh_all_reduce(y.data(), y.data(), kWidth, RH_F32, RH_SUM, tensor.get(), nullptr));
  activate(y);
  return y;
}

void checkResult(const Vector& y, int batch, int stages) {
  Vector want = batchNumber(batch);
  for (int stage = 0; stage < stages; stage++) activate(want = multiply(want, stage, 0, kWidth));
  if (y != want) throw std::runtime_error("the result of batch " + std::to_string(batch) + " is wrong");
}

void runPipeline(const Comm& tensor, const Comm& pipe) {
  const int stage = rankOf(pipe), last = sizeOf(pipe) - 1;
  Vector ready;  // output of this stage that has not been sent yet
  for (int n = 0; n <= kBatches; n++) {
    Vector coming = batchNumber(n);
    check(rh_group_start());
    if (stage > 0 && n < kBatches) check(rh_recv(coming.data(), kWidth, RH_F32, stage - 1, pipe.get(), nullptr));
    if (stage < last && n > 0) check(rh_send(ready.data(), kWidth, RH_F32, stage + 1, pipe.get(), nullptr));
    check(rh_group_end());
    if (n == kBatches) break;
    ready = runStage(coming, stage, tensor);
    if (stage == last) checkResult(ready, n, last + 1);
  }
  if (stage == last) std::printf("%d batches went through %d stages of %d ranks\n", kBatches, last + 1, kTensor);
}

int main() try {
  const Session session = connect();
  const Comm world = join(session);
  const int rank = rankOf(world);
  if (sizeOf(world) % kTensor != 0) throw std::runtime_error("the number of ranks must be even: each stage has two");
  const Comm tensor = split(world, rank / kTensor, rank);  // the ranks of a stage
  const Comm pipe = split(world, rank % kTensor, rank);    // one rank of each stage
  runPipeline(tensor, pipe);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
