//! Takes test code out of a parsed file.
//!
//! Test code is what `#[cfg(test)]` or a test attribute marks. Tests may import against the order.

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Item, Meta, Stmt, Token};

/// Lines from the first to the last, both included.
pub(crate) type Lines = (usize, usize);

/// Removes all test code, and returns the lines on which it stood.
pub(crate) fn prune(file: &mut syn::File) -> Vec<Lines> {
    let mut pruned = Pruned::default();
    pruned.visit_file_mut(file);
    pruned.lines
}

/// Whether the attributes of something say that it exists in tests only.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|meta| requires_test(&meta))
        }
        Meta::Path(path) => path.segments.last().is_some_and(|last| last.ident == "test"),
        Meta::List(list) => list.path.segments.last().is_some_and(|last| last.ident == "test"),
        Meta::NameValue(_) => false,
    })
}

/// Whether a `cfg` predicate can be true in tests only.
fn requires_test(meta: &Meta) -> bool {
    let Meta::List(list) = meta else {
        return meta.path().is_ident("test");
    };
    let parser = Punctuated::<Meta, Token![,]>::parse_terminated;
    let Ok(parts) = list.parse_args_with(parser) else {
        return false;
    };
    if list.path.is_ident("all") {
        parts.iter().any(requires_test)
    } else {
        list.path.is_ident("any") && !parts.is_empty() && parts.iter().all(requires_test)
    }
}

/// The attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[derive(Default)]
struct Pruned {
    lines: Vec<Lines>,
}

impl Pruned {
    /// Whether something stays; if it does not, its lines are noted.
    fn keeps(&mut self, attributes: &[Attribute], item: &impl Spanned) -> bool {
        if !is_test(attributes) {
            return true;
        }
        let span = item.span();
        self.lines.push((span.start().line, span.end().line));
        false
    }

    fn keeps_statement(&mut self, statement: &Stmt) -> bool {
        match statement {
            Stmt::Local(local) => self.keeps(&local.attrs, local),
            Stmt::Item(item) => self.keeps(attributes(item), item),
            Stmt::Macro(call) => self.keeps(&call.attrs, call),
            Stmt::Expr(..) => true,
        }
    }
}

impl VisitMut for Pruned {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| self.keeps(attributes(item), item));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| self.keeps(attributes(item), item));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            syn::ImplItem::Const(item) => self.keeps(&item.attrs, item),
            syn::ImplItem::Fn(item) => self.keeps(&item.attrs, item),
            syn::ImplItem::Type(item) => self.keeps(&item.attrs, item),
            syn::ImplItem::Macro(item) => self.keeps(&item.attrs, item),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_item_trait_mut(&mut self, item: &mut syn::ItemTrait) {
        item.items.retain(|item| match item {
            syn::TraitItem::Fn(item) => self.keeps(&item.attrs, item),
            _ => true,
        });
        visit_mut::visit_item_trait_mut(self, item);
    }

    fn visit_item_enum_mut(&mut self, item: &mut syn::ItemEnum) {
        let variants = std::mem::take(&mut item.variants).into_iter();
        item.variants = variants.filter(|variant| self.keeps(&variant.attrs, variant)).collect();
        visit_mut::visit_item_enum_mut(self, item);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut syn::FieldsNamed) {
        let named = std::mem::take(&mut fields.named).into_iter();
        fields.named = named.filter(|field| self.keeps(&field.attrs, field)).collect();
        visit_mut::visit_fields_named_mut(self, fields);
    }

    fn visit_expr_struct_mut(&mut self, expression: &mut syn::ExprStruct) {
        let fields = std::mem::take(&mut expression.fields).into_iter();
        expression.fields = fields.filter(|field| self.keeps(&field.attrs, field)).collect();
        visit_mut::visit_expr_struct_mut(self, expression);
    }

    fn visit_expr_match_mut(&mut self, expression: &mut syn::ExprMatch) {
        expression.arms.retain(|arm| self.keeps(&arm.attrs, arm));
        visit_mut::visit_expr_match_mut(self, expression);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|statement| self.keeps_statement(statement));
        visit_mut::visit_block_mut(self, block);
    }
}
