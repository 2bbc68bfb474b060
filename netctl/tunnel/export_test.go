package tunnel

// OpenTap is openTap, for tests that have no process.
var OpenTap = openTap

// MembersOf is members.
var MembersOf = members

// OrderOf is order.
var OrderOf = Config.order
