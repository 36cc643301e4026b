//! The table of figures by which two states of the house are compared.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Context;
use serde_json::{Map, Value};

use crate::circles::Graph;
use crate::faults;
use crate::imports;
use crate::methods;
use crate::modules::{self, House};
use crate::order::Order;
use crate::size::{Product, Size};
use crate::tree::{SCRIPTS, Tree};

/// The columns: what text shows, and the key in JSON.
const COLUMNS: [(&str, &str); 19] = [
    ("crate", "crate"),
    ("rooms", "rooms"),
    ("files", "files"),
    ("lines", "lines"),
    ("test lines", "test_lines"),
    ("fn p50", "function_p50"),
    ("fn p90", "function_p90"),
    ("fn max", "function_max"),
    ("in circles", "files_in_circles"),
    ("upwards", "imports_upwards"),
    ("methods", "files_naming_methods"),
    ("tuple lets", "tuple_lets"),
    (">100 cols", "lines_over_100"),
    ("closures", "one_line_closures"),
    ("product files", "product_files"),
    ("<60", "product_files_under_60"),
    ("pure", "pure_lines"),
    ("closures/10k", "named_closures_per_10000"),
    ("re-bound/10k", "rebound_names_per_10000"),
];

/// The figures of one crate, or of several together.
#[derive(Clone, Default)]
struct Row {
    name: String,
    rooms: usize,
    size: Size,
    in_circles: usize,
    /// None without a declared order.
    upwards: Option<usize>,
    /// Files outside the table of RPCs that name a method; none if the RPCs are not known.
    methods: Option<usize>,
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.rooms += other.rooms;
        self.size.add(&other.size);
        self.in_circles += other.in_circles;
        self.upwards = sum(self.upwards, other.upwards);
        self.methods = sum(self.methods, other.methods);
    }

    fn figures(&self) -> [Option<usize>; 18] {
        [
            Some(self.rooms),
            Some(self.size.files),
            Some(self.size.lines),
            Some(self.size.test_lines),
            Some(self.size.percentile(50)),
            Some(self.size.percentile(90)),
            Some(self.size.percentile(100)),
            Some(self.in_circles),
            self.upwards,
            self.methods,
            Some(self.size.tuple_lets),
            Some(self.size.long_lines),
            Some(self.size.closures),
            Some(self.size.product.files),
            Some(self.size.product.small_files),
            Some(self.size.product.pure_lines),
            Some(self.size.product.tenths_per_thousand(self.size.product.closures)),
            Some(self.size.product.tenths_per_thousand(self.size.product.rebound)),
        ]
    }
}

fn sum(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    Some(one? + other?)
}

/// All rows: each crate, the products together, the tests together, and everything.
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Measures a checkout. Its document need not declare an order.
    ///
    /// # Errors
    /// A file cannot be parsed, or the declared order is not of the known form.
    pub(crate) fn of(tree: &Tree) -> anyhow::Result<Self> {
        let order = Order::read(tree)?;
        let house = House::read(tree)?;
        let imports = imports::all(&house);
        let graph = Graph::of(&imports);
        let knotted: Vec<_> = graph.knots().into_iter().flatten().collect();
        let upwards = order.map(|order| faults::upwards(&order, &house, &imports));
        let mentions = methods::all(tree, &house).ok();
        let mut rows = Vec::new();
        for (id, package) in house.packages.iter().enumerate() {
            let is_here = |file: &&usize| house.files[**file].package == id;
            let upwards = upwards.as_ref();
            let methods = mentions.as_ref().map(|all| {
                let here = all.iter().filter(|mention| mention.package == id);
                here.map(|mention| &mention.file).collect::<BTreeSet<_>>().len()
            });
            rows.push(Row {
                name: package.directory.clone(),
                rooms: rooms(&house, id),
                size: size(tree, &house, id)?,
                in_circles: knotted.iter().filter(is_here).count(),
                upwards: upwards.map(|all| all.iter().filter(|(at, _)| *at == id).count()),
                methods,
            });
        }
        let is_tests = |row: &&Row| row.name == "tests" || row.name.starts_with("tests/");
        let products = total("all but tests", rows.iter().filter(|row| !is_tests(row)));
        let tests = total("all tests", rows.iter().filter(is_tests));
        let everything = total("total", [&products, &tests].into_iter());
        rows.extend([products, tests, everything]);
        Ok(Self { rows })
    }

    /// The table as aligned text.
    pub(crate) fn text(&self) -> String {
        let head = COLUMNS.map(|(title, _)| title.to_owned()).to_vec();
        let body = self.rows.iter().map(|row| {
            let figures = row.figures().into_iter().map(shown);
            [row.name.clone()].into_iter().chain(figures).collect::<Vec<_>>()
        });
        let lines: Vec<_> = [head].into_iter().chain(body).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max();
        let widths: Vec<_> = (0..COLUMNS.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for line in &lines {
            let _ = write!(text, "{:<1$}", line[0], widths[0]);
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        text
    }

    /// The table as JSON: a list with one object for each row.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        let rows = self.rows.iter().map(|row| {
            let name = Value::from(row.name.clone());
            let figures = row.figures().into_iter().map(Value::from);
            let keys = COLUMNS.iter().map(|(_, key)| (*key).to_owned());
            Value::Object(keys.zip([name].into_iter().chain(figures)).collect::<Map<_, _>>())
        });
        Ok(serde_json::to_string_pretty(&rows.collect::<Vec<_>>())?)
    }
}

fn total<'a>(name: &str, rows: impl Iterator<Item = &'a Row>) -> Row {
    let mut total =
        Row { name: name.to_owned(), upwards: Some(0), methods: Some(0), ..Row::default() };
    rows.for_each(|row| total.add(row));
    total
}

fn shown(figure: Option<usize>) -> String {
    figure.map_or_else(|| "n/a".to_owned(), |figure| figure.to_string())
}

/// The number of modules directly below `src/`.
fn rooms(house: &House, package: usize) -> usize {
    let files = 0..house.files.len();
    let files = files.filter(|file| house.files[*file].package == package);
    files.filter_map(|file| house.room(file)).collect::<BTreeSet<_>>().len()
}

fn is_script(path: &str) -> bool {
    SCRIPTS.iter().any(|end| path.ends_with(end))
}

/// Measures all sources of a crate except generated ones.
fn size(tree: &Tree, house: &House, package: usize) -> anyhow::Result<Size> {
    let about = &house.packages[package];
    let production: BTreeSet<_> = house.files.iter().map(|file| file.path.as_str()).collect();
    let mut size = Size::default();
    for folder in ["src", "tests", "benches", "examples"] {
        // The directory of the crate `tests` holds other crates, but not in these folders.
        let below = format!("{}/{folder}/", about.directory);
        for path in tree.below(&below) {
            if !about.is_for_tests() && is_script(path) {
                size.product.add(&Product::script(tree.get(path).unwrap_or_default()));
            }
            if !path.ends_with(".rs") {
                continue;
            }
            let is_other = house.packages.iter().any(|other| {
                other.directory.len() > about.directory.len()
                    && path.starts_with(&format!("{}/", other.directory))
            });
            if is_other || modules::is_generated(path) {
                continue;
            }
            let is_test = about.is_for_tests() || !production.contains(path);
            let text = tree.get(path).unwrap_or_default();
            size.add(&Size::of(text, is_test).with_context(|| path.to_owned())?);
        }
    }
    Ok(size)
}
