//! What must hold for any bytes that are taken for a contact.

use farandole_transport::Contact;

/// What decodes has exactly these bytes as its encoding.
pub(crate) fn check(bytes: &[u8]) {
    if let Some(contact) = Contact::decode(bytes) {
        assert_eq!(contact.encode(), bytes, "a contact has one encoding");
    }
}
