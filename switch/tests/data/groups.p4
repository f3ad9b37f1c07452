/* Tables with one key, applied one after the other: the key changes in an action, in a branch, or not at all. And
 * variables that are copied before they change. */
#include <core.p4>
#include <v1model.p4>

header probe_t { bit<8> way; bit<8> spare; bit<32> a; bit<32> b; bit<8> first; bit<8> second; bit<8> third; bit<32> sum; }
struct headers_t { probe_t probe; }
struct metadata_t { bit<32> key; }

const bit<8> REKEY = 1;  // the action of `again` changes the key
const bit<8> BRANCH = 2; // a branch does
const bit<8> HASH = 3;

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.probe); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action set_first(bit<8> value) { hdr.probe.first = value; }
    action rekey(bit<32> key) { meta.key = key; }
    action set_second(bit<8> value) { hdr.probe.second = value; }
    action set_third(bit<8> value) { hdr.probe.third = value; }
    table first { key = { meta.key : exact; } actions = { set_first; NoAction; } default_action = NoAction(); size = 8; }
    table again { key = { meta.key : exact; } actions = { rekey; NoAction; } default_action = NoAction(); size = 8; }
    action set_note(bit<8> value) { hdr.probe.spare = value; }
    table note { key = { meta.key : exact; } actions = { set_note; NoAction; } default_action = NoAction(); size = 8; }
    table second { key = { meta.key : exact; } actions = { set_second; NoAction; } default_action = NoAction(); size = 8; }
    table third { key = { meta.key : exact; } actions = { set_third; NoAction; } default_action = NoAction(); size = 8; }
    apply {
        hdr.probe.spare = 0;
        meta.key = hdr.probe.a;
        standard.egress_spec = 1;
        first.apply();
        if (hdr.probe.way == REKEY) { again.apply(); }
        if (hdr.probe.way != BRANCH) { note.apply(); }
        else { meta.key = hdr.probe.b; }
        second.apply();
        third.apply();
        if (hdr.probe.way == HASH) {
            bit<32> old = hdr.probe.a;
            hdr.probe.a = hdr.probe.b;
            hash(hdr.probe.sum, HashAlgorithm.crc32, 32w0, { old, hdr.probe.a }, 64w0x100000000);
        }
    }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }
control Compute(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
