-- Wireshark and tshark: what only Fat-B+Tree speaks. The index header of READs between the first and the last switch, and the query protocol.
--
--   wireshark -X lua_script:scripts/fatbtree.lua capture.pcap
--   tshark    -X lua_script:scripts/fatbtree.lua -r capture.pcap -V
--
-- Layouts: fabric/wire/src/index.rs, fabric/wire/src/query/mod.rs. An index header is where IPv4's reserved flag says so, whatever the UDP port; behind
-- it is RoCE, which Wireshark knows by itself.

local index = Proto("fatbtree_index", "Fat-B+Tree index header")
local query = Proto("fatbtree_query", "Fat-B+Tree query")

local ROCE_PORT = 4791
local IN_FLIGHT_PORT = 4792 -- [network] in_flight_port of the cluster file
local QUERY_PORT = 4793
local DIRECT_QUERY_PORT = 4794
local INDEX_BYTES = 16
local QUERY_BYTES = 72

local OPS = { [1] = "open", [2] = "get", [3] = "put", [4] = "update", [5] = "delete", [6] = "scan" }
local SCAN = 6
local STATUSES = { [0] = "done", "not found", "redirect", "not open", "refused", "too large", "busy", "forgotten", "failed", "unknown",
    "damaged", "no key", "tree lost" }

local walk = {
    version = ProtoField.uint8("fatbtree.index.version", "Version"),
    flags = ProtoField.uint8("fatbtree.index.flags", "Flags", base.HEX),
    climbing = ProtoField.bool("fatbtree.index.flags.climbing", "Climbing", 8, nil, 1),
    inner = ProtoField.bool("fatbtree.index.flags.inner", "Inner node", 8, nil, 2),
    leaf = ProtoField.bool("fatbtree.index.flags.leaf", "Leaf", 8, nil, 4),
    epoch = ProtoField.uint8("fatbtree.index.epoch", "Epoch"),
    levels = ProtoField.uint8("fatbtree.index.levels", "Levels walked"),
    partition = ProtoField.uint16("fatbtree.index.partition", "Partition"),
    path = ProtoField.uint8("fatbtree.index.path", "Path"),
    slice = ProtoField.uint8("fatbtree.index.slice", "Slice begins at line", base.DEC, nil, 0xf8),
    class = ProtoField.uint8("fatbtree.index.class", "Queue of a second pass", base.DEC, nil, 0x07),
    key = ProtoField.uint64("fatbtree.index.key", "Key", base.HEX),
}
index.fields = { walk.version, walk.flags, walk.climbing, walk.inner, walk.leaf, walk.epoch, walk.levels, walk.partition, walk.path, walk.slice,
    walk.class, walk.key }

local asked = {
    server = ProtoField.uint16("fatbtree.query.server", "Server of the node"),
    offset_in_server = ProtoField.uint64("fatbtree.query.node", "Offset of the node", base.HEX),
    op = ProtoField.uint8("fatbtree.query.op", "Operation", base.DEC, OPS, 0x7f),
    is_response = ProtoField.bool("fatbtree.query.response", "Response", 8, nil, 0x80),
    status = ProtoField.uint8("fatbtree.query.status", "Status", base.DEC, STATUSES),
    execution = ProtoField.uint64("fatbtree.query.execution", "Execution", base.HEX),
    limit = ProtoField.uint32("fatbtree.query.limit", "Records"),
    client = ProtoField.uint64("fatbtree.query.client", "Client", base.HEX),
    request = ProtoField.uint64("fatbtree.query.request", "Request id"),
    range_end = ProtoField.uint64("fatbtree.query.range_end", "Range end, next key or cookie", base.HEX),
    total = ProtoField.uint32("fatbtree.query.total", "Bytes of the payload"),
    offset = ProtoField.uint32("fatbtree.query.offset", "This part begins at"),
    tag = ProtoField.uint64("fatbtree.query.tag", "Tag", base.HEX),
    part = ProtoField.bytes("fatbtree.query.part", "Part of the payload"),
    record_key = ProtoField.uint64("fatbtree.query.record.key", "Key", base.HEX),
    record_value = ProtoField.bytes("fatbtree.query.record.value", "Value"),
}
query.fields = { asked.server, asked.offset_in_server, asked.op, asked.is_response, asked.status, asked.execution, asked.limit, asked.client,
    asked.request, asked.range_end, asked.total, asked.offset, asked.tag, asked.part, asked.record_key, asked.record_value }

local damaged = ProtoExpert.new("fatbtree.query.damaged", "Not a query", expert.group.MALFORMED, expert.severity.ERROR)
query.experts = { damaged }

local function add_walk(buffer, tree)
    tree:add(walk.version, buffer(0, 1))
    local flags = tree:add(walk.flags, buffer(1, 1))
    flags:add(walk.climbing, buffer(1, 1))
    flags:add(walk.inner, buffer(1, 1))
    flags:add(walk.leaf, buffer(1, 1))
    tree:add(walk.epoch, buffer(2, 1))
    tree:add(walk.levels, buffer(3, 1))
    tree:add(walk.partition, buffer(4, 2))
    tree:add(walk.path, buffer(6, 1))
    tree:add(walk.slice, buffer(7, 1))
    tree:add(walk.class, buffer(7, 1))
    tree:add(walk.key, buffer(8, 8))
end

local reserved_flag = Field.new("ip.flags.rb")
local ports = DissectorTable.get("udp.port")

function index.dissector(buffer, packet, tree)
    local mark = reserved_flag()
    if buffer:len() < INDEX_BYTES or not (mark and mark.value) then
        return 0 -- a host's own traffic on this port
    end
    add_walk(buffer, tree:add(index, buffer(0, INDEX_BYTES)))
    ports:get_dissector(ROCE_PORT):call(buffer(INDEX_BYTES):tvb(), packet, tree)
    packet.cols.protocol = "Index READ"
    packet.cols.info:prepend(string.format("key 0x%s ", buffer(8, 8):bytes():tohex(true)))
    return buffer:len()
end

function query.dissector(buffer, packet, tree)
    packet.cols.protocol = "Fat-B+Tree query"
    local root = tree:add(query, buffer())
    if buffer:len() < QUERY_BYTES then
        root:add_proto_expert_info(damaged, "shorter than a header")
        return buffer:len()
    end
    local op, status = buffer(24, 1):uint(), buffer(25, 1):uint()
    local is_response, name = op >= 0x80, OPS[op % 0x80]
    if not name or not STATUSES[status] then
        root:add_proto_expert_info(damaged, "an operation or a status that is none")
    end
    add_walk(buffer, root)
    root:add(asked.server, buffer(16, 2))
    root:add(asked.offset_in_server, buffer(16, 8), buffer(18, 6):uint64())
    root:add(asked.op, buffer(24, 1))
    root:add(asked.is_response, buffer(24, 1))
    if is_response then
        root:add(asked.status, buffer(25, 1))
        root:add(asked.execution, buffer(26, 6), buffer(26, 6):uint64())
    else
        root:add(asked.limit, buffer(28, 4))
    end
    root:add(asked.client, buffer(32, 8))
    root:add(asked.request, buffer(40, 8))
    root:add(asked.range_end, buffer(48, 8))
    root:add(asked.total, buffer(56, 4))
    root:add(asked.offset, buffer(60, 4))
    root:add(asked.tag, buffer(64, 8))
    local said = string.format("%s key 0x%s", name or "?", buffer(8, 8):bytes():tohex(true))
    if is_response then
        said = said .. ": " .. (STATUSES[status] or "?")
    end
    packet.cols.info = said
    local part = buffer:len() - QUERY_BYTES
    if part > 0 then
        local payload = root:add(asked.part, buffer(QUERY_BYTES))
        local is_whole = buffer(56, 4):uint() == part
        local at = QUERY_BYTES
        -- Records of a scan that came in one part.
        while is_response and op % 0x80 == SCAN and is_whole and at + 12 <= buffer:len() do
            local length = buffer(at + 8, 4):uint()
            if at + 12 + length > buffer:len() then
                root:add_proto_expert_info(damaged, "a record that ends behind the payload")
                break
            end
            payload:add(asked.record_key, buffer(at, 8))
            if length > 0 then
                payload:add(asked.record_value, buffer(at + 12, length))
            end
            at = at + 12 + length
        end
    end
    return buffer:len()
end

ports:add(IN_FLIGHT_PORT, index)
ports:add(QUERY_PORT, query)
ports:add(DIRECT_QUERY_PORT, query)
