/* Prints the addresses of a name, as the C library finds them. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>

int main(int argc, char **argv) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    int problem = argc == 2 ? getaddrinfo(argv[1], "80", &hints, &found) : EAI_NONAME;
    if (problem) {
        fprintf(stderr, "%s\n", gai_strerror(problem));
        return 1;
    }
    for (; found; found = found->ai_next) {
        char text[NI_MAXHOST];
        if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST)) return 1;
        puts(text);
    }
}
