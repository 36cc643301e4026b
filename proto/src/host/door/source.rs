//! Sources of connections: address ranges that share a limit, and the ranges that have linked
//! before.
//!
//! A host has a /64 of IPv6, and a site has a /48. So a /64 has the limit of one IPv4 address, and
//! a /48 has a few times as much.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use crate::host::limit::ipv6_network;

/// The sources that are remembered; about 100 bytes each.
const REMEMBERED: usize = 32_768;
/// A /48 of IPv6 has the limit of this many addresses.
const SITE: usize = 4;

/// An IPv4 address, or a /64 or a /48 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    network: IpAddr,
    prefix: u32,
}

impl Source {
    /// The sources that an address belongs to, the narrowest first.
    pub fn all_of(address: IpAddr) -> Box<[Self]> {
        match address.to_canonical() {
            IpAddr::V6(address) => [64, 48].map(|prefix| Self::of_prefix(address, prefix)).into(),
            network => [Self { network, prefix: 32 }].into(),
        }
    }

    fn of_prefix(address: Ipv6Addr, prefix: u32) -> Self {
        Self { network: ipv6_network(address, prefix).into(), prefix }
    }

    /// Its limit, as a number of addresses.
    pub(super) fn weight(self) -> usize {
        if self.prefix == 48 { SITE } else { 1 }
    }
}

/// The sources that have linked, the latest ones.
#[derive(Default)]
pub(super) struct Linked {
    next: u64,
    numbers: HashMap<Source, u64>,
    /// In the order of their last link.
    by_number: BTreeMap<u64, Source>,
}

impl Linked {
    /// True if it has linked before.
    pub(super) fn contains(&self, source: Source) -> bool {
        self.numbers.contains_key(&source)
    }

    /// Notes a link. The source whose last link is the oldest is forgotten if there are too many.
    pub(super) fn note(&mut self, source: Source) {
        let number = self.next;
        self.next += 1;
        if let Some(before) = self.numbers.insert(source, number) {
            self.by_number.remove(&before);
        }
        self.by_number.insert(number, source);
        if self.by_number.len() > REMEMBERED
            && let Some((_, oldest)) = self.by_number.pop_first()
        {
            self.numbers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(address: &str) -> Box<[Source]> {
        Source::all_of(address.parse().unwrap())
    }

    #[test]
    fn a_host_of_ipv6_is_one_source_and_a_site_another() {
        let [host, site] = *sources("2001:db8::1") else { panic!("two sources") };
        assert_eq!(*sources("2001:db8::ffff:1"), [host, site]);
        let [other, same] = *sources("2001:db8:0:1::1") else { panic!("two sources") };
        assert!(other != host && same == site);
        assert!(!sources("2001:db8:1::1").contains(&site));
        assert_eq!([host.weight(), site.weight()], [1, 4]);
        assert_eq!(sources("::ffff:192.0.2.1"), sources("192.0.2.1"));
        assert_eq!(sources("192.0.2.1").len(), 1);
    }

    #[test]
    fn the_latest_sources_are_remembered_and_no_more() {
        let mut linked = Linked::default();
        let source = |number: u32| sources(&std::net::Ipv4Addr::from_bits(number).to_string())[0];
        linked.note(source(1));
        linked.note(source(2));
        linked.note(source(1));
        for number in 10..10 + u32::try_from(REMEMBERED).unwrap() - 1 {
            linked.note(source(number));
        }
        assert!(linked.contains(source(1)) && !linked.contains(source(2)));
        assert_eq!((linked.numbers.len(), linked.by_number.len()), (REMEMBERED, REMEMBERED));
    }
}
