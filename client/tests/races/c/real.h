// The functions that the linker's option --wrap has renamed. A file of the world that needs the real one calls it by this name.
#ifndef RAILHEAD_RACES_REAL_H_
#define RAILHEAD_RACES_REAL_H_

#include <pthread.h>
#include <sys/types.h>

extern "C" {
int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __real_pthread_join(pthread_t, void**);
int __real_pthread_mutex_lock(pthread_mutex_t*);
int __real_pthread_mutex_unlock(pthread_mutex_t*);
int __real_pthread_mutex_destroy(pthread_mutex_t*);
int __real_pthread_once(pthread_once_t*, void (*)());
int __real_pthread_cond_init(pthread_cond_t*, const pthread_condattr_t*);
int __real_pthread_cond_destroy(pthread_cond_t*);
int __real_close(int);
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_munmap(void*, size_t);
int __real_memfd_create(const char*, unsigned);
ssize_t __real_read(int, void*, size_t);
ssize_t __real_write(int, const void*, size_t);
long __real_syscall(long, ...);
void __real_free(void*);  // in the build with hooks
}

namespace world {
constexpr auto real_syscall = __real_syscall;
}  // namespace world

#endif  // RAILHEAD_RACES_REAL_H_
