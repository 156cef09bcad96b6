/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-imex-ctl: -q prints READY when the local daemon is, -N the domain of this one node (-j as JSON).
 */
#define _GNU_SOURCE
#include "board.h"

#include <getopt.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int ready = 0;
    int domain = 0;
    int json = 0;
    int option;

    while ((option = getopt(argc, argv, "qNjst:c:h")) != -1) {
        domain |= option == 'N';
        json |= option == 'j';
        if (option == '?')
            return 1;
    }
    if (board_open(0) == 0) {
        ready = board_number(0, "imex.ready") != 0;
        board_close();
    }
    if (!domain)
        puts(ready ? "READY" : "NOT READY");
    else if (json)
        printf("{\"nodes\":{\"0\":{\"status\":\"%s\",\"host\":\"127.0.0.1\"}},\"status\":\"%s\"}\n",
               ready ? "READY" : "UNAVAILABLE", ready ? "UP" : "DOWN");
    else
        printf("Domain State: %s\n", ready ? "UP" : "DOWN");
    return ready ? 0 : 1;
}
