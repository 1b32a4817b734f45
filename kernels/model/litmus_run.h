// Litmus programs: a few accesses of a few threads, of which the model lists all outcomes. They show that the model's memory is the one
// that it is meant to be; they have nothing to do with the protocols.
//
// A program is the threads' operations. Threads are separated by |, operations by spaces:
//   Wx1 Wx1.rel      stores 1 to x           Rx Rx.acq    loads x        Ax4   adds 4 to x
//   F.acq F.rel F.ar F.sc                    fences: acquire, release, both, sequentially consistent
// An outcome is what the loads and adds have read, in the order of the text, then the last values of x, y, z.
#ifndef RAILHEAD_KERNELS_MODEL_LITMUS_RUN_H_
#define RAILHEAD_KERNELS_MODEL_LITMUS_RUN_H_

#include <ctype.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "model/mem.h"

namespace railhead::model {

struct LitmusOperation {
  char kind;  // W, R, A, F
  int location = 0;
  uint32_t value = 0;
  std::string order;
};

struct LitmusProgram {
  std::vector<std::vector<LitmusOperation>> threads;

  // False: the text is no program.
  bool parse(const std::string& text) {
    threads.assign(1, {});
    for (size_t i = 0; i < text.size();) {
      if (isspace(static_cast<unsigned char>(text[i]))) {
        i++;
        continue;
      }
      if (text[i] == '|') {
        threads.emplace_back();
        i++;
        continue;
      }
      size_t end = i;
      while (end < text.size() && text[end] != ' ' && text[end] != '|') end++;
      if (!parseOperation(text.substr(i, end - i))) return false;
      i = end;
    }
    return threads.size() <= 5;
  }

 private:
  bool parseOperation(const std::string& word) {
    const size_t dot = word.find('.');
    LitmusOperation o = {word[0], 0, 0, dot == std::string::npos ? "" : word.substr(dot + 1)};
    const std::string rest = word.substr(1, dot == std::string::npos ? dot : dot - 1);
    const auto orders = [&](std::initializer_list<const char*> allowed) {
      return std::any_of(allowed.begin(), allowed.end(), [&](const char* a) { return o.order == a; });
    };
    bool good = o.kind == 'F' ? rest.empty() && orders({"acq", "rel", "ar", "sc"}) : !rest.empty() && rest[0] >= 'x' && rest[0] <= 'z';
    if (o.kind != 'F' && good) {
      o.location = rest[0] - 'x';
      o.value = static_cast<uint32_t>(atoi(rest.c_str() + 1));
      good = o.kind == 'W' ? orders({"", "rel"}) : o.kind == 'R' ? orders({"", "acq"}) : o.kind == 'A' && orders({""});
    }
    threads.back().push_back(o);
    return good;
  }
};

class LitmusRun {
 public:
  LitmusRun(World& world, const LitmusProgram& program) : world_(world), program_(program) {
    world.memory.add(words_, sizeof words_, 4, [](size_t unit) { return std::string(1, static_cast<char>('x' + unit)); });
    for (size_t t = 0; t < program.threads.size(); t++) {
      read_.emplace_back();
      world.addFiber(static_cast<int>(t), 0, [this, t] { thread(t); });
    }
  }

  // After the run.
  std::string outcome() {
    std::string text;
    for (const auto& values : read_) {
      for (const uint32_t v : values) text += std::to_string(v) + " ";
    }
    text += ":";
    for (const uint32_t& w : words_) text += " " + std::to_string(world_.memory.at(world_.memory.find(&w, 4)).newest().value);
    return text;
  }

 private:
  void thread(size_t t) {
    FlagMem mem(world_);
    for (const LitmusOperation& o : program_.threads[t]) {
      uint32_t* at = &words_[o.location];
      switch (o.kind) {
        case 'W': o.order == "rel" ? mem.storeRelease(at, o.value) : mem.storeRelaxed(at, o.value); break;
        case 'R': read_[t].push_back(o.order == "acq" ? mem.loadAcquire(at) : mem.loadRelaxed(at)); break;
        case 'A': read_[t].push_back(static_cast<uint32_t>(world_.add(at, 4, o.value, "add"))); break;
        default: fence(mem, o.order);
      }
    }
  }
  void fence(FlagMem& mem, const std::string& order) {
    if (order == "acq") return mem.fenceAcquire();
    if (order == "rel") return mem.fenceRelease();
    if (order == "sc") return mem.fence();
    world_.fence(Fence::kBoth, "");
  }

  World& world_;
  const LitmusProgram& program_;
  uint32_t words_[3] = {};
  std::vector<std::vector<uint32_t>> read_;  // by each thread
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_LITMUS_RUN_H_
