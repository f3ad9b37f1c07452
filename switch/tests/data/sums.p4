/* Arithmetic on one header: each field of `answer` is an expression over `a`, `b`, `c`, `d`. Loops and conditionals in
 * actions, signed numbers, saturation. */
#include <core.p4>
#include <v1model.p4>

header sums_t {
    bit<64> a; bit<32> b; bit<8> c; int<16> d; bit<8> pad;
    bit<64> plus; bit<64> minus; bit<64> times; bit<32> shifted; bit<32> right; bit<8> inverted; bit<8> negated;
    bit<16> slices; bit<8> saturated_up; bit<8> saturated_down; bit<8> compared; int<16> signed_sum;
    int<16> signed_shift; bit<8> signed_compared; bit<32> chosen; bit<16> rounds; bit<32> either; bit<32> inverse;
}
struct headers_t { sums_t sums; }
struct metadata_t { bit<1> flag; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.sums); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action compute() {
        hdr.sums.plus = hdr.sums.a + (bit<64>)hdr.sums.b;
        hdr.sums.minus = (bit<64>)hdr.sums.b - hdr.sums.a;
        hdr.sums.times = hdr.sums.a * (bit<64>)hdr.sums.c;
        hdr.sums.shifted = hdr.sums.b << hdr.sums.c;
        hdr.sums.right = (hdr.sums.b >> hdr.sums.c) ^ (hdr.sums.b >> 3);
        hdr.sums.inverted = ~hdr.sums.c;
        hdr.sums.negated = -hdr.sums.c;
        hdr.sums.slices[15:8] = hdr.sums.b[19:12];
        hdr.sums.slices[7:4] = hdr.sums.c[3:0];
        hdr.sums.slices[3:0] = 5;
        hdr.sums.saturated_up = hdr.sums.c |+| hdr.sums.b[7:0];
        hdr.sums.saturated_down = hdr.sums.c |-| hdr.sums.b[7:0];
        hdr.sums.signed_sum = hdr.sums.d + (int<16>)hdr.sums.b[15:0];
        hdr.sums.signed_shift = hdr.sums.d >> 2;
        hdr.sums.compared = 0;
        if (hdr.sums.a > (bit<64>)hdr.sums.b) { hdr.sums.compared = hdr.sums.compared | 1; }
        if (hdr.sums.b <= 1000 && hdr.sums.c != 3) { hdr.sums.compared = hdr.sums.compared | 2; }
        if (!(hdr.sums.b < 10 || hdr.sums.c == 3)) { hdr.sums.compared = hdr.sums.compared | 4; }
        else { hdr.sums.compared = hdr.sums.compared | 8; }
        hdr.sums.signed_compared = hdr.sums.d < 0 ? 8w1 : 8w2;
        if (hdr.sums.d >= -5) { hdr.sums.signed_compared = hdr.sums.signed_compared + 16; }
        hdr.sums.chosen = hdr.sums.c == 0 ? hdr.sums.b : (bit<32>)hdr.sums.c;
        hdr.sums.either = hdr.sums.b | (bit<32>)hdr.sums.c;
        hdr.sums.inverse = ~(bit<32>)hdr.sums.c;
        hdr.sums.rounds = 0;
        for (bit<16> i = 0; i < (bit<16>)hdr.sums.c; i = i + 1) { hdr.sums.rounds = hdr.sums.rounds + i; }
    }
    apply { compute(); standard.egress_spec = 1; }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }
control Compute(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
