/* A hostile host: frames that only switches may send, over a packet socket.
 *
 *   forge CARD SOURCE_IP DESTINATION_IP DESTINATION_QP COUNT
 *
 * Sends COUNT index packets as a switch passes them on (IPv4's reserved flag set, an index header behind UDP), with each combination
 * of flags, epochs from 1 on, and a node's address that counts up; then as many READs with the key of another host's connection, from
 * that host's address (SOURCE_IP) but this card.  Prints `sent N`. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { ETHERNET = 14, IPV4 = 20, UDP = 8, INDEX = 16, BTH = 12, RETH = 16, ICRC = 4, ROCE = 4791, IN_FLIGHT = 4792 };

static void die(const char *what)
{
    printf("forge: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void put(uint8_t *at, int bytes, uint64_t value)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

static void checksum(uint8_t *ip)
{
    uint32_t sum = 0;
    put(ip + 10, 2, 0);
    for (int i = 0; i < IPV4; i += 2) sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    put(ip + 10, 2, (uint16_t)~sum);
}

/* A READ of `va`, with an index header or without; its length. */
static size_t frame(uint8_t *out, const uint8_t *mac, in_addr_t from, in_addr_t to, uint32_t qp, int with_index, int n)
{
    size_t udp = UDP + (with_index ? INDEX : 0) + BTH + RETH + ICRC;
    memset(out, 0, ETHERNET + IPV4 + udp);
    memset(out, 0xfe, 6);
    memcpy(out + 6, mac, 6);
    put(out + 12, 2, 0x0800);
    uint8_t *ip = out + ETHERNET, *at = ip + IPV4;
    ip[0] = 0x45;
    put(ip + 2, 2, IPV4 + udp);
    put(ip + 6, 2, with_index ? 0x8000 : 0x4000);
    ip[8] = 64;
    ip[9] = 17;
    memcpy(ip + 12, &from, 4);
    memcpy(ip + 16, &to, 4);
    checksum(ip);
    put(at, 2, 0xc000);
    put(at + 2, 2, with_index ? IN_FLIGHT : ROCE);
    put(at + 4, 2, udp);
    at += UDP;
    if (with_index) {
        at[0] = 4;
        at[1] = (uint8_t)(n & 7);
        at[2] = (uint8_t)(1 + n % 255);
        put(at + 8, 8, (uint64_t)n);
        at += INDEX;
    }
    at[0] = 0x0c;
    put(at + 2, 2, 0xffff);
    put(at + 5, 3, qp);
    at[8] = 0x80;
    put(at + 9, 3, (uint64_t)n);
    at += BTH;
    put(at, 8, 64 * (uint64_t)n);
    put(at + 12, 4, 64);
    return ETHERNET + IPV4 + udp;
}

int main(int count, char **words)
{
    if (count != 6) {
        printf("usage: forge CARD SOURCE_IP DESTINATION_IP DESTINATION_QP COUNT\n");
        return 2;
    }
    int card = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    if (card < 0) die("a packet socket");
    struct ifreq name = {0};
    strncpy(name.ifr_name, words[1], IFNAMSIZ - 1);
    if (ioctl(card, SIOCGIFINDEX, &name)) die(words[1]);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = name.ifr_ifindex, .sll_halen = 6};
    if (ioctl(card, SIOCGIFHWADDR, &name)) die(words[1]);
    const uint8_t *mac = (const uint8_t *)name.ifr_hwaddr.sa_data;
    in_addr_t from = inet_addr(words[2]), server = inet_addr(words[3]);
    uint32_t qp = (uint32_t)strtoul(words[4], NULL, 0);
    int sent = 0, frames = atoi(words[5]);
    for (int n = 0; n < 2 * frames; n++) {
        uint8_t bytes[128];
        size_t length = frame(bytes, mac, from, server, qp, n < frames, n);
        if (sendto(card, bytes, length, 0, (struct sockaddr *)&to, sizeof to) != (ssize_t)length) die("sending");
        sent++;
    }
    printf("sent %d\n", sent);
    return 0;
}
