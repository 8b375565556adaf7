/* A program for tests that lives until its standard input ends; with an argument it starts that
 * program in its place when it has read one byte. */
#include <unistd.h>

int main(int argc, char **argv) {
    char byte;
    if (write(1, "\n", 1) != 1) return 1;
    while (read(0, &byte, 1) > 0)
        if (argc > 1) execv(argv[1], argv + 1);
    return 0;
}
