//! Bare pixels as an image file: PNM, which is a line of text and the pixels.
//!
//! Arrays hold pixels without any format. As PGM (`P5`, grey) or PPM (`P6`, red, green and blue) they can be handed to
//! whoever decodes images, for the price of a copy.

/// An image of bytes, row by row, with 1 or 3 bands interleaved. Nothing if there are not as many bytes as that takes.
pub fn encode(height: usize, width: usize, bands: usize, pixels: &[u8]) -> Option<Vec<u8>> {
    let kind = match bands {
        1 => 5,
        3 => 6,
        _ => return None,
    };
    let wanted = height.checked_mul(width)?.checked_mul(bands)?;
    if wanted != pixels.len() || wanted == 0 {
        return None;
    }
    let header = format!("P{kind}\n{width} {height}\n255\n");
    Some([header.as_bytes(), pixels].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decode;

    proptest! {
        #[test]
        fn pixels_come_back(height in 1usize..6, width in 1usize..6, grey: bool, byte: u8) {
            let bands = if grey { 1 } else { 3 };
            let pixels: Vec<u8> = (0..height * width * bands).map(|at| byte.wrapping_add(at as u8)).collect();
            let encoded = encode(height, width, bands, &pixels).unwrap();
            let image = decode::decode(&encoded, bands).unwrap();
            prop_assert_eq!((image.height, image.width, image.bytes), (height, width, pixels));
            for end in 0..encoded.len() {
                prop_assert!(decode::decode(&encoded[..end], bands).is_err());
            }
        }
    }

    #[test]
    fn other_numbers_of_bands_and_bytes_are_refused() {
        assert_eq!(encode(1, 1, 2, &[0; 2]), None);
        assert_eq!(encode(2, 2, 1, &[0; 3]), None);
        assert_eq!(encode(usize::MAX, 2, 1, &[]), None);
    }
}
