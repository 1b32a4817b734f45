// Compares the library's declarations of the CUDA driver API with CUDA's own headers, when it compiles. The test generates the file that
// includes this one: before it, OURS(name, value) for each constant; see declarations_test.go.
#include <cudaTypedefs.h>

#include <type_traits>

namespace {

// Whether two types are passed alike. What only one of the two sides defines, an opaque struct, is compared as a pointer.
template <class T, class = void>
struct Size {
  static constexpr size_t value = 0;  // incomplete
};
template <class T>
struct Size<T, std::void_t<decltype(sizeof(T))>> {
  static constexpr size_t value = std::is_void_v<T> || std::is_function_v<T> ? 0 : sizeof(T);
};

template <class T>
constexpr bool isWhole = std::is_integral_v<T> || std::is_enum_v<T>;

template <class A, class B>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    using To = std::remove_pointer_t<A>;
    using From = std::remove_pointer_t<B>;
    if (!std::is_pointer_v<A> || !std::is_pointer_v<B> || std::is_const_v<To> != std::is_const_v<From>) return false;
    if constexpr (std::is_function_v<To> || std::is_function_v<From>) return std::is_same_v<To, From>;
    else if constexpr (Size<To>::value == 0 || Size<From>::value == 0) return std::is_void_v<To> == std::is_void_v<From>;
    else return alike<std::remove_cv_t<To>, std::remove_cv_t<From>>();
  } else {
    return sizeof(A) == sizeof(B) && isWhole<A> == isWhole<B> && std::is_floating_point_v<A> == std::is_floating_point_v<B> && std::is_class_v<A> == std::is_class_v<B>;
  }
}

template <class Ours, class Theirs>
struct Function;
template <class... A, class R, class... B, class S>
struct Function<R(A...), S (*)(B...)> {
  static constexpr bool same() {
    if constexpr (sizeof...(A) == sizeof...(B)) return alike<R, S>() && (alike<A, B>() && ...);
    else return false;
  }
};

#define CHECK_FUNCTION(name, release, parameters) \
  static_assert(Function<ours_##name, PFN_##name##_v##release>::same(), #name " of CUDA " #release " has other parameters");
RAILHEAD_CUDA_FUNCTIONS(CHECK_FUNCTION)
RAILHEAD_CUDA_TEST_FUNCTIONS(CHECK_FUNCTION)

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
constexpr bool sameText(const char* a, const char* b) { return *a == *b && (*a == '\0' || sameText(a + 1, b + 1)); }
static_assert(sameText(TEXT_OF(cuGetProcAddress), "cuGetProcAddress_v2"), "the name in the library");
static_assert(Function<CUresult(const char*, void**, int, unsigned long long, OursQueryResult*), PFN_cuGetProcAddress_v12000>::same(), "cuGetProcAddress");

#define SAME_STRUCT(name) static_assert(sizeof(Ours##name) == sizeof(name) && alignof(Ours##name) == alignof(name), #name)
#define SAME_FIELD(name, field) \
  static_assert(offsetof(Ours##name, field) == offsetof(name, field) && sizeof(Ours##name::field) == sizeof(name::field), #name "." #field)

SAME_STRUCT(CUuuid);
SAME_STRUCT(CUmemLocation);
SAME_FIELD(CUmemLocation, type);
SAME_FIELD(CUmemLocation, id);
SAME_STRUCT(CUmemAllocationProp);
SAME_FIELD(CUmemAllocationProp, type);
SAME_FIELD(CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(CUmemAllocationProp, location);
SAME_FIELD(CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(CUmemAllocationProp, allocFlags);
SAME_FIELD(CUmemAllocationProp, allocFlags.compressionType);
SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_FIELD(CUmemAllocationProp, allocFlags.usage);
SAME_STRUCT(CUmemAccessDesc);
SAME_FIELD(CUmemAccessDesc, location);
SAME_FIELD(CUmemAccessDesc, flags);
SAME_STRUCT(CUmemFabricHandle);
SAME_STRUCT(CUipcMemHandle);
SAME_STRUCT(CUlaunchAttributeValue);
SAME_FIELD(CUlaunchAttributeValue, programmaticStreamSerializationAllowed);
SAME_FIELD(CUlaunchAttributeValue, priority);
SAME_STRUCT(CUlaunchAttribute);
SAME_FIELD(CUlaunchAttribute, id);
SAME_FIELD(CUlaunchAttribute, value);
SAME_STRUCT(CUlaunchConfig);
SAME_FIELD(CUlaunchConfig, gridDimX);
SAME_FIELD(CUlaunchConfig, gridDimY);
SAME_FIELD(CUlaunchConfig, gridDimZ);
SAME_FIELD(CUlaunchConfig, blockDimX);
SAME_FIELD(CUlaunchConfig, blockDimY);
SAME_FIELD(CUlaunchConfig, blockDimZ);
SAME_FIELD(CUlaunchConfig, sharedMemBytes);
SAME_FIELD(CUlaunchConfig, hStream);
SAME_FIELD(CUlaunchConfig, attrs);
SAME_FIELD(CUlaunchConfig, numAttrs);

static_assert(sizeof(OursCUdevice) == sizeof(CUdevice) && sizeof(OursCUdeviceptr) == sizeof(CUdeviceptr), "device and pointer");
static_assert(sizeof(OursCUmemGenericAllocationHandle) == sizeof(CUmemGenericAllocationHandle), "handle of memory");
static_assert(CU_IPC_HANDLE_SIZE == sizeof(OursCUipcMemHandle), "bytes of a handle");

}  // namespace
