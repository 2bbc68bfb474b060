package agentrpc

import "strings"

// MaxSentence bounds what one end keeps of a sentence of the other, in bytes.
const MaxSentence = 1024

// Sentence is a text of the other end that is kept in a record: of at most 1 KiB, in UTF-8.
func Sentence(s string) string { return Shortened(s, MaxSentence) }

// Shortened is a text of the other end with at most so many bytes, in UTF-8.
func Shortened(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "?") }
