//! Messages of every RPC, filled by CSI's own description. The test chooses each text in them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use prost::Message as _;
use protox::Compiler;
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, MapKey,
    MessageDescriptor, Value,
};

/// As deep as messages are filled.
const DEPTH: usize = 5;

/// The messages of CSI, and which fields are secret.
pub struct Spec {
    pool: DescriptorPool,
    secret: ExtensionDescriptor,
}

/// An RPC of CSI.
pub struct Rpc {
    /// For example `/csi.v1.Controller/CreateVolume`.
    pub path: String,
    /// The message of its request.
    pub request: MessageDescriptor,
    /// The message of its answer.
    pub answer: MessageDescriptor,
}

/// The texts in a message.
pub struct Texts<'a> {
    /// The value in each map of secrets.
    pub secret: &'a str,
    /// The text of a field with this name; without one it stays empty.
    pub field: &'a dyn Fn(&str) -> Option<String>,
    /// The key and the value in all other maps; without one they stay empty.
    pub map: Option<&'a str>,
}

impl Rpc {
    /// The last part of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

impl Spec {
    /// Reads csi.proto.
    ///
    /// # Errors
    /// It is not there, or is none.
    pub fn read() -> anyhow::Result<Self> {
        let mut compiler =
            Compiler::new([Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/csi/v1")])?;
        let compiled = compiler.include_imports(true).open_file("csi.proto")?;
        // Read again with the file's own extensions at hand: only so are its options more than
        // unknown fields.
        let pool = DescriptorPool::decode(compiled.encode_file_descriptor_set().as_slice())?;
        let secret = pool.get_extension_by_name("csi.v1.csi_secret").context("no csi_secret")?;
        Ok(Self { pool, secret })
    }

    /// All secret fields, as `Message.field`.
    pub fn secrets(&self) -> BTreeSet<String> {
        let fields =
            self.pool.all_messages().flat_map(|message| message.fields().collect::<Vec<_>>());
        fields
            .filter(|field| self.is_secret(field))
            .map(|field| field.full_name().to_owned())
            .collect()
    }

    /// All RPCs; those that delete come last.
    pub fn rpcs(&self) -> Vec<Rpc> {
        let services = self.pool.services();
        let mut rpcs: Vec<_> = services
            .flat_map(|service| {
                let name = service.full_name().to_owned();
                let rpc = |method: protox::prost_reflect::MethodDescriptor| Rpc {
                    path: format!("/{name}/{}", method.name()),
                    request: method.input(),
                    answer: method.output(),
                };
                service.methods().map(rpc).collect::<Vec<_>>()
            })
            .collect();
        rpcs.sort_by_key(|rpc| rpc.name().starts_with("Delete"));
        rpcs
    }

    /// An encoded message with these texts.
    pub fn fill(&self, message: &MessageDescriptor, texts: &Texts<'_>) -> Vec<u8> {
        self.message(message, texts, DEPTH).encode_to_vec()
    }

    fn is_secret(&self, field: &FieldDescriptor) -> bool {
        field.options().get_extension(&self.secret).as_bool() == Some(true)
    }

    fn message(
        &self,
        descriptor: &MessageDescriptor,
        texts: &Texts<'_>,
        depth: usize,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields().filter(|field| depth > 0 || self.is_secret(field)) {
            let value = if self.is_secret(&field) {
                // Every secret field is a map of texts.
                Some(map("key", texts.secret))
            } else {
                self.value(&field, texts, depth)
            };
            if let Some(value) = value {
                message.set_field(&field, value);
            }
        }
        message
    }

    fn value(&self, field: &FieldDescriptor, texts: &Texts<'_>, depth: usize) -> Option<Value> {
        let one = match field.kind() {
            _ if field.is_map() => return texts.map.map(|text| map(text, text)),
            Kind::String => Value::String((texts.field)(field.name())?),
            Kind::Message(message) if !message.full_name().starts_with("google.") => {
                Value::Message(self.message(&message, texts, depth - 1))
            }
            _ => return None,
        };
        Some(if field.is_list() { Value::List(vec![one]) } else { one })
    }
}

fn map(key: &str, value: &str) -> Value {
    Value::Map([(MapKey::String(key.into()), Value::String(value.into()))].into())
}
