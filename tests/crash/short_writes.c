/* Makes every gathered write a short one: what the kernel may do at any time, and almost never does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t writev(int fd, const struct iovec *buffers, int count)
{
    size_t length = buffers[0].iov_len > 7 ? 7 : buffers[0].iov_len;
    (void)count;
    return write(fd, buffers[0].iov_base, length);
}
