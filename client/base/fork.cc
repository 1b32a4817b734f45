#include "base/fork.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/registry.h"

namespace railhead::client {

namespace {

Registry<ForkHandler> handlers;

void inChild() {
  for (const ForkHandler* h = handlers.first(); h != nullptr; h = h->next) h->inChild();
}

int registered = 0;  // an errno

}  // namespace

void addForkHandler(ForkHandler* handler) { handlers.add(handler); }

rh_result watchForks() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { registered = pthread_atfork(nullptr, nullptr, inChild); });
  if (registered == 0) return RH_OK;
  return fail(RH_ERR_SYSTEM, "connect: pthread_atfork: %s", strerror(registered));
}

}  // namespace railhead::client
