//! The load of `make bench CASE=guest`, inside the guest: reads or writes of one file past the
//! guest's page cache, for a time.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::fs::OFlags;
use tokio::time::Instant;

use super::protocol::{Load, Loaded, What};

/// The alignment that `O_DIRECT` requires of addresses and lengths.
const ALIGNED: usize = 4096;
/// A file is laid out in pieces of this size.
const PIECE: usize = 1 << 20;

/// Loads the file.
///
/// # Errors
/// The file system's.
pub fn run(load: &Load) -> anyhow::Result<Loaded> {
    ensure!(
        load.block > 0 && load.block.is_multiple_of(ALIGNED),
        "a block of {} bytes",
        load.block
    );
    ensure!(load.bytes >= load.block as u64, "a file that is shorter than a block");
    lay_out(&load.path, load.bytes)
        .with_context(|| format!("cannot lay out {}", load.path.display()))?;
    let (file, direct) =
        open(load).with_context(|| format!("cannot open {}", load.path.display()))?;
    let from = Instant::now();
    let until = from + Duration::from_millis(load.ms);
    let counts: Vec<io::Result<u64>> = std::thread::scope(|scope| {
        let file = &file;
        let work = |n| scope.spawn(move || one(file, load, n, until));
        let all: Vec<_> = (0..load.threads as u64).map(work).collect();
        let ended = || io::Error::other("a thread of the load panicked");
        all.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended()))).collect()
    });
    let seconds = from.elapsed().as_secs_f64();
    let count = counts.into_iter().sum::<io::Result<u64>>()? as f64;
    Ok(Loaded { bytes_per_s: count * load.block as f64 / seconds, per_s: count / seconds, direct })
}

/// With content, so that no hole is read.
fn lay_out(path: &Path, bytes: u64) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|there| there.len() >= bytes) {
        return Ok(());
    }
    let mut file = File::create(path)?;
    let piece = vec![0xa5; PIECE];
    let mut left = bytes;
    while left > 0 {
        let some = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        file.write_all(&piece[..some])?;
        left -= some as u64;
    }
    file.sync_all()
}

/// Past the page cache, if the file system has that.
fn open(load: &Load) -> io::Result<(File, bool)> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    let with = |flags| File::options().read(true).write(true).custom_flags(flags).open(&load.path);
    match with(direct) {
        Ok(file) => Ok((file, load.what != What::Files)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok((with(0)?, false)),
        Err(error) => Err(error),
    }
}

/// Runs the `n`th thread, and returns its number of blocks.
fn one(file: &File, load: &Load, n: u64, until: Instant) -> io::Result<u64> {
    let mut room = vec![0x5a; load.block + ALIGNED];
    let from = room.as_ptr().align_offset(ALIGNED);
    let block = &mut room[from..from + load.block];
    let blocks = load.bytes / load.block as u64;
    let size = load.block as u64;
    let mut count = 0;
    let mut random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while Instant::now() < until {
        random = next(random);
        match load.what {
            What::Read => file.read_exact_at(block, count % blocks * size)?,
            What::Write => file.write_all_at(block, count % blocks * size)?,
            What::ReadAnywhere => file.read_exact_at(block, random % blocks * size)?,
            What::WriteAnywhere => file.write_all_at(block, random % blocks * size)?,
            What::Files => {
                made_and_removed(&load.path.with_extension(format!("{n}-{count}")), block)?
            }
        }
        count += 1;
    }
    Ok(count)
}

fn made_and_removed(path: &Path, block: &[u8]) -> io::Result<()> {
    File::create_new(path)?.write_all(block)?;
    std::fs::remove_file(path)
}

/// Marsaglia's xorshift: a guest that has just started has no entropy to ask for.
fn next(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_counted_and_writes_what_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let what = What::ReadAnywhere;
        let load = Load { path, bytes: 1 << 20, block: 8192, what, threads: 3, ms: 20 };
        let read = run(&load).unwrap();
        assert!(
            read.per_s > 0.0 && (read.bytes_per_s / read.per_s - 8192.0).abs() < 1e-6,
            "{read:?}"
        );
        let there = || std::fs::read(&load.path).unwrap();
        assert!(there().len() == 1 << 20 && there().iter().all(|byte| *byte == 0xa5));
        run(&Load { what: What::Write, threads: 1, ..load.clone() }).unwrap();
        assert_eq!(
            (there().len(), there()[..8192].iter().all(|byte| *byte == 0x5a)),
            (1 << 20, true)
        );
        let files = run(&Load { what: What::Files, ..load.clone() }).unwrap();
        assert!(files.per_s > 0.0 && !files.direct, "{files:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "files were left");
    }

    #[test]
    fn the_numbers_go_round_without_zero() {
        let seen: std::collections::HashSet<_> =
            std::iter::successors(Some(1), |x| Some(next(*x))).take(1000).collect();
        assert!(seen.len() == 1000 && !seen.contains(&0));
    }
}
