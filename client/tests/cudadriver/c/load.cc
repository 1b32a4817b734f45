// Prints what loading the driver, and finding the device that the argument names, gives.
#include "check.h"
#include "device/cuda/context.h"
#include "device/cuda/devices.h"
#include "device/cuda/probe.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

int main(int count, char** arguments) {
  Failure why;
  const Driver* driver = loadDriver(&why);
  if (driver == nullptr) {
    printf("%s: %s\n", rh_result_string(why.result), why.text);
    CHECK(loadedDriver() == nullptr);
    return 0;
  }
  CHECK(loadDriver(&why) == driver && loadedDriver() == driver);
  CUdevice device;
  DeviceFacts facts;
  Context context;
  if (!findDevice(*driver, count > 1 ? arguments[1] : "0", &device, &why) || !describeDevice(*driver, device, &facts, &why) ||
      !checkDevice(*driver, facts, &why) || !openContext(driver, device, &context, &why)) {
    printf("%s: %s\n", rh_result_string(why.result), why.text);
    return 0;
  }
  printf("device %d: %s, %s, bus %s, capability %d, %d multiprocessors, driver %d\n", device, facts.name, facts.uuid, facts.pciBusId, facts.capability,
         facts.multiprocessors, driver->version);
  const bool fabric = probeFabric(context, &why);
  printf("FABRIC handles: %s%s\n", fabric ? "yes" : "no: ", why.text);
  Failure closing;
  CHECK(closeContext(&context, &closing));
  const fake_cuda_account none = {};
  CHECK(same(none, Fake().account()));
  return 0;
}
