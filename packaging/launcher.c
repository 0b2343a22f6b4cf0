/* The program `mqtool` of the folder: runs the module with the interpreter beside it, wherever both were unpacked.
 *
 * Isolated (-I): no variable or file of another Python counts. -B: nothing is written. A link to this file works. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    static char python[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", python, sizeof python - 64);
    if (length < 0 && !realpath(words[0], python)) {
        perror("mqtool: cannot find its own folder (is /proc mounted?)");
        return 8;
    }
    if (length > 0) python[length] = 0;
    strcpy(strrchr(python, '/'), "/python/bin/python" PYTHON);
    char *line[count + 5];
    char *head[] = {python, "-I", "-B", "-m", "mqtool"};
    memcpy(line, head, sizeof head);
    memcpy(line + 5, words + 1, (size_t)count * sizeof *line); /* with the NULL that ends them */
    execv(python, line);
    perror(python);
    return 8;
}
