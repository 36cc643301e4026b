//! Which parts of an image have data, and in which parts two images differ.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::check::BLOCK;

/// How much is compared at once, in bytes.
const STEP: u64 = 256 * BLOCK_U64;
const BLOCK_U64: u64 = BLOCK.unsigned_abs();

/// From a byte to before another.
pub(super) type Extent = (u64, u64);

/// The extents with data in `file` from `from` to before `to`, in whole blocks.
pub(super) fn allocated(file: &File, from: u64, to: u64) -> io::Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    let mut at = from / BLOCK_U64 * BLOCK_U64;
    while at < to {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start / BLOCK_U64 * BLOCK_U64,
            // Only a hole is left, or the end.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start.max(at)))?.next_multiple_of(BLOCK_U64).min(to);
        if start.max(at) >= end {
            break;
        }
        join(&mut found, (start.max(at), end));
        at = end;
    }
    Ok(found)
}

/// Gives `each` the extents from `from` to the end of `target` whose bytes differ from those of
/// `base`. Bytes beyond the end of `base` count as zeros.
pub(super) fn changed(
    base: &File,
    target: &File,
    from: u64,
    mut each: impl FnMut(Extent) -> ControlFlow<()>,
) -> io::Result<()> {
    let to = target.metadata()?.len();
    let mut open = None::<Extent>;
    let mut old = Vec::new();
    let mut new = Vec::new();
    let mut lengthen = |extent: Extent| match &mut open {
        Some(last) if last.1 == extent.0 => {
            last.1 = extent.1;
            ControlFlow::Continue(())
        }
        last => last.replace(extent).map_or(ControlFlow::Continue(()), &mut each),
    };
    // A hole in both cannot differ.
    for (start, end) in union(allocated(base, from, to)?, allocated(target, from, to)?) {
        let mut at = start;
        while at < end {
            let length = usize::try_from((end - at).min(STEP)).map_err(io::Error::other)?;
            read(base, at, length, &mut old)?;
            read(target, at, length, &mut new)?;
            if differing(at, &old, &new).try_for_each(&mut lengthen).is_break() {
                return Ok(());
            }
            at += length as u64;
        }
    }
    // The receiver's answer to the last extent does not matter.
    let _ = open.map(each);
    Ok(())
}

fn differing<'a>(at: u64, old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = Extent> + 'a {
    let block = usize::try_from(BLOCK_U64).unwrap_or(usize::MAX);
    let pairs = old.chunks(block).zip(new.chunks(block)).zip((at..).step_by(block));
    pairs
        .filter(|((old, new), _)| old != new)
        .map(|((_, new), start)| (start, start + new.len() as u64))
}

fn read(file: &File, at: u64, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    into.resize(length, 0);
    let mut done = 0;
    while done < length {
        match file.read_at(&mut into[done..], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn union(mut a: Vec<Extent>, b: Vec<Extent>) -> Vec<Extent> {
    a.extend(b);
    a.sort_unstable();
    a.into_iter().fold(Vec::new(), |mut all, extent| {
        join(&mut all, extent);
        all
    })
}

/// Appends an extent, or lengthens the last one if they touch.
fn join(all: &mut Vec<Extent>, extent: Extent) {
    match all.last_mut() {
        Some(last) if extent.0 <= last.1 => last.1 = last.1.max(extent.1),
        _ => all.push(extent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn image(writes: &[(u64, &[u8])], size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (at, bytes) in writes {
            file.write_all_at(bytes, *at).unwrap();
        }
        file.sync_all().unwrap();
        file
    }

    fn delta(base: &File, target: &File, from: u64) -> Vec<Extent> {
        let mut all = Vec::new();
        changed(base, target, from, |extent| {
            all.push(extent);
            ControlFlow::Continue(())
        })
        .unwrap();
        all
    }

    #[test]
    fn the_extents_of_a_sparse_file_are_its_data() {
        let file = image(&[(MIB, &[1; 8192]), (5 * MIB, &[2; 4096])], 16 * MIB);
        let both = [(MIB, MIB + 8192), (5 * MIB, 5 * MIB + 4096)];
        assert_eq!(allocated(&file, 0, 16 * MIB).unwrap(), both);
        assert_eq!(
            allocated(&file, MIB + 5000, 16 * MIB).unwrap(),
            [(MIB + 4096, MIB + 8192), both[1]]
        );
        assert_eq!(allocated(&file, 6 * MIB, 16 * MIB).unwrap(), []);
        assert_eq!(allocated(&image(&[], MIB), 0, MIB).unwrap(), []);
    }

    #[test]
    fn a_delta_is_the_blocks_that_differ() {
        let base = image(&[(0, &[1; 8192]), (4 * MIB, &[3; 4096])], 8 * MIB);
        let mut half = [1; 8192];
        half[5000] = 9;
        let target = image(&[(0, &half), (6 * MIB, &[7; 12288]), (10 * MIB, &[1; 4096])], 12 * MIB);
        let all = [
            (4096, 8192),
            (4 * MIB, 4 * MIB + 4096),
            (6 * MIB, 6 * MIB + 12288),
            (10 * MIB, 10 * MIB + 4096),
        ];
        assert_eq!(delta(&base, &target, 0), all);
        assert_eq!(delta(&base, &target, 4 * MIB + 100), all[1..]);
        assert_eq!(delta(&target, &target, 0), []);
        // Zeros that were written are no change.
        assert_eq!(delta(&image(&[], MIB), &image(&[(0, &[0; 8192])], MIB), 0), []);
    }

    #[test]
    fn a_receiver_that_has_enough_stops_the_comparison() {
        let base = image(&[], 8 * MIB);
        let target = image(&[(0, &[1; 4096]), (MIB, &[1; 4096]), (2 * MIB, &[1; 4096])], 8 * MIB);
        let mut seen = 0;
        changed(&base, &target, 0, |_| {
            seen += 1;
            ControlFlow::Break(())
        })
        .unwrap();
        assert_eq!(seen, 1);
    }
}
