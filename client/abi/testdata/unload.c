/* Unloads the library while its control thread runs, and continues to use it. Argument: the library. Reads RAILHEAD_SOCKET. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "railhead.h"

int main(int argc, char **argv) {
  rh_result (*connect)(const rh_session_config *, rh_session **);
  rh_result (*close)(rh_session *);
  rh_session *session = NULL;
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  *(void **)&connect = dlsym(library, "rh_connect");
  *(void **)&close = dlsym(library, "rh_close");
  if (connect == NULL || close == NULL || connect(NULL, &session) != RH_OK) return 1;
  if (dlclose(library) != 0) return 1;
  return close(session) == RH_OK ? 0 : 1; /* joins the thread */
}
