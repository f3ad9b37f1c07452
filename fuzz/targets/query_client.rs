//! Whatever datagrams come as answers, a request ends by one with its number and the client's, or by its time, and once.
#![no_main]

use std::collections::BTreeMap;

use fatbtree_fuzz::{Counting, Input, held};
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status, WINDOW, records};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static MEMORY: Counting = Counting;

const LONGEST_ANSWER: u32 = 1000;
/// Of parts of a value.
const PART: usize = 20;
/// Bytes of a client: answers of which parts are missing, and what is to be sent.
const MOST_HELD: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let before = held();
    let mut lab = Lab::new();
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        match input.below(8) {
            0 => lab.ask(&mut input),
            1 => lab.wait(Duration::from_micros(1 << input.below(23))),
            2 => {
                let most = input.below(256);
                lab.answer(input.bytes(most));
            }
            _ => {
                let datagram = lab.draw(&mut input);
                lab.answer(&datagram);
            }
        }
        assert!(held().saturating_sub(before) < MOST_HELD, "{} bytes are held", held() - before);
    }
    lab.wait(RequesterOptions::default().patience);
    assert!(lab.asked.is_empty(), "without an end: {:?}", lab.asked);
    assert_eq!((lab.client.under_way(), lab.client.poll_timeout()), (0, None));
});

struct Lab {
    client: Requester,
    now: Instant,
    number: u64,
    /// What has not ended.
    asked: BTreeMap<u64, (Op, u64)>,
    /// The last requests that were sent.
    sent: Vec<QueryHeader>,
}

impl Lab {
    fn new() -> Self {
        let options = RequesterOptions {
            servers: vec![(0, 0), (100, 1)],
            longest_answer: LONGEST_ANSWER,
            part: PART,
            ..RequesterOptions::default()
        };
        let mut client = Requester::new(options, 1);
        let mut asked = BTreeMap::new();
        asked.extend(client.ask(Instant::ZERO, Ask::get(7)).map(|id| (id, (Op::Get, 7))));
        let number =
            client.poll_transmit().and_then(|sent| Some(Query::parse(&sent.bytes).ok()?.header.client));
        let number = number.expect("a get is sent at once");
        let sent = vec![QueryHeader::request(Op::Get, 7, number, 1)];
        Self { client, now: Instant::ZERO, number, asked, sent }
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let (op, key) = (input.below(5), input.number());
        let ask = match op {
            0 => Ask::get(key),
            1 => Ask::put(key, input.bytes(50).to_vec()),
            2 => Ask::update(key, Vec::new()),
            3 => Ask::delete(key),
            _ => Ask::scan(key, input.number(), 10),
        };
        let op = ask.op;
        match self.client.ask(self.now, ask) {
            Some(id) => assert_eq!(self.asked.insert(id, (op, key)), None, "a number is used once"),
            None => assert!(!self.client.has_room()),
        }
        assert!(self.client.under_way() as u64 <= WINDOW);
        self.take_sent();
    }

    /// An answer to something that was sent, with some of its fields overwritten.
    fn draw(&self, input: &mut Input<'_>) -> Vec<u8> {
        let to = self.sent[self.sent.len() - 1 - input.below(self.sent.len())];
        let mut header = to.response(Status::ALL[input.below(Status::ALL.len())]);
        if input.below(4) == 0 {
            header.op = Op::ALL[input.below(Op::ALL.len())];
        }
        (header.walk.partition, header.execution) = (input.below(4) as u16, input.below(3) as u16);
        header.range_end = input.number();
        header.address = input.number();
        let most = input.below(64);
        let part = input.bytes(most);
        header.offset = input.below(64) as u32;
        header.total = header.offset + part.len() as u32 + input.below(16) as u32;
        let mut datagram = [&header.to_bytes()[..], part].concat();
        input.overwrite(&mut datagram);
        datagram
    }

    fn answer(&mut self, datagram: &[u8]) {
        self.client.handle(self.now, datagram);
        let found = Query::parse(datagram).ok().map(|query| query.header);
        while let Some((id, answer)) = self.client.poll_answer() {
            let asked = self.asked.remove(&id).expect("it was asked for and had not ended");
            let header = found.expect("what is no answer ends nothing");
            assert_eq!((header.client, header.request), (self.number, id), "{answer:?}");
            assert_eq!((header.op, header.walk.key), asked, "{answer:?}");
            let status = header.status.expect("a request ends nothing");
            match answer {
                Answer::Value(payload) | Answer::Records { payload, .. } => {
                    assert_eq!((status, payload.len()), (Status::Done, header.total as usize));
                    assert!(payload.len() <= LONGEST_ANSWER as usize);
                    let _ = records::read(&payload).count();
                }
                Answer::Written => assert!(status == Status::Done && asked.0.is_write()),
                Answer::NotFound => assert_eq!(status, Status::NotFound),
                Answer::OtherCode(code) => {
                    assert_eq!((status, code.is_none()), (Status::OtherCode, asked.0.is_write()));
                }
                Answer::Refused(_) => {}
                Answer::Lost => assert!(!asked.0.is_write()),
                Answer::Unknown => assert!(asked.0.is_write()),
            }
        }
        self.take_sent();
    }

    /// Everything that is due by then, in order.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.client.poll_timeout().filter(|due| *due <= end) {
            assert!(due >= self.now, "time does not go back");
            self.now = due;
            self.client.handle_timeout(due);
            while let Some((id, answer)) = self.client.poll_answer() {
                let (op, _) = self.asked.remove(&id).expect("it was asked for and had not ended");
                assert_eq!(answer, if op.is_write() { Answer::Unknown } else { Answer::Lost });
            }
            self.take_sent();
        }
        self.now = end;
    }

    fn take_sent(&mut self) {
        while let Some(sent) = self.client.poll_transmit() {
            let header = Query::parse(&sent.bytes).expect("clients send requests").header;
            assert_eq!((header.status, header.client), (None, self.number));
            self.sent.push(header);
        }
        let older = self.sent.len().saturating_sub(16);
        self.sent.drain(..older);
    }
}
