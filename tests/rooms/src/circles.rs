//! Circles of files: groups in which each file reaches each other one by imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::imports::{Import, To};
use crate::modules::FileId;

/// The files that each file imports, with the first line that does.
pub(crate) struct Graph {
    edges: BTreeMap<FileId, BTreeMap<FileId, usize>>,
}

/// An import on a circle: the file, the line, and the file that it imports.
pub(crate) type Step = (FileId, usize, FileId);

impl Graph {
    /// The graph of all imports.
    pub(crate) fn of(imports: &[Import]) -> Self {
        let mut edges: BTreeMap<FileId, BTreeMap<FileId, usize>> = BTreeMap::new();
        for import in imports {
            if let To::File(to) = import.to {
                let line = edges.entry(import.from).or_default().entry(to).or_insert(import.line);
                *line = import.line.min(*line);
            }
        }
        Self { edges }
    }

    /// All groups of two files or more that reach each other. Each file is in one at most.
    pub(crate) fn knots(&self) -> Vec<BTreeSet<FileId>> {
        let reached: BTreeMap<_, _> =
            self.edges.keys().map(|file| (*file, self.reachable(*file))).collect();
        let mut knots = BTreeSet::new();
        for (file, others) in reached.iter().filter(|(file, others)| others.contains(file)) {
            let comes_back =
                |other: &&FileId| reached.get(other).is_some_and(|back| back.contains(file));
            knots.insert(others.iter().filter(comes_back).copied().collect::<BTreeSet<_>>());
        }
        knots.into_iter().collect()
    }

    /// A shortest circle in a group.
    pub(crate) fn circle(&self, knot: &BTreeSet<FileId>) -> Vec<Step> {
        let circles = knot.iter().map(|start| self.shortest(*start, knot));
        circles.min_by_key(Vec::len).unwrap_or_default()
    }

    fn imported(&self, file: FileId) -> impl Iterator<Item = (FileId, usize)> {
        self.edges.get(&file).into_iter().flatten().map(|(to, line)| (*to, *line))
    }

    /// Every file that imports lead to from a file.
    fn reachable(&self, start: FileId) -> BTreeSet<FileId> {
        let mut reached = BTreeSet::new();
        let mut next = vec![start];
        while let Some(file) = next.pop() {
            let new = self.imported(file).map(|(to, _)| to).filter(|to| reached.insert(*to));
            next.extend(new);
        }
        reached
    }

    /// The shortest way from a file back to itself.
    fn shortest(&self, start: FileId, knot: &BTreeSet<FileId>) -> Vec<Step> {
        let mut came: BTreeMap<FileId, (FileId, usize)> = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(file) = next.pop_front().filter(|_| !came.contains_key(&start)) {
            for (to, line) in self.imported(file).filter(|(to, _)| knot.contains(to)) {
                came.entry(to).or_insert_with(|| {
                    next.push_back(to);
                    (file, line)
                });
            }
        }
        let mut steps = Vec::new();
        let mut at = start;
        while let Some((from, line)) = came.get(&at).copied() {
            steps.push((from, line, at));
            at = from;
            if at == start {
                break;
            }
        }
        steps.reverse();
        steps
    }
}
