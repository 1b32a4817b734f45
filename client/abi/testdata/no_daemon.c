/* Prints the version, and checks that rh_connect fails without a daemon. Argument: the path of a socket that does not exist. */
#include <stdio.h>
#include <string.h>

#include "railhead.h"

int main(int argc, char **argv) {
  rh_session_config config = RH_SESSION_CONFIG_INIT;
  rh_session *session = NULL;
  rh_result result;
  if (argc != 2) return 2;
  config.socket_path = argv[1];
  result = rh_connect(&config, &session);
  printf("%u %s\n", (unsigned)rh_get_version(), rh_result_string(result));
  return result == RH_ERR_NO_DAEMON && session == NULL && strstr(rh_last_error_message(), argv[1]) != NULL ? 0 : 1;
}
