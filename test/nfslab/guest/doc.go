// Package guest tries what the guest of test/nfslab is for.
package guest
