// Package s3 serves folders over the S3 protocol: a bucket is a volume, a key is a path in it. It knows neither
// accounts nor hosts: a Source says which key may do what and opens the folders.
//
// # Names
//
//   - The key "a/b" is the file a/b. The key "a/b/" with an empty body is the folder a/b.
//   - Keys with empty, "." or ".." components, NUL, components above 255 bytes or above 1,024 bytes in all are refused.
//   - A folder that is empty is listed as "name/". One that a client made by its own key is always listed, as on AWS.
//   - A folder that a PUT made on the way to its object goes again when its last object is deleted. One that a client or a
//     pod made stays; deleting its key while it holds something makes it one of the first kind. This is kept in an extended
//     attribute; where a file system has none, folders stay.
//   - Links that stay in the volume are followed by GET and HEAD; PUT replaces and DELETE removes the link itself. Listings show
//     links to files, but do not go through links to folders. Pipes, sockets and devices are no objects.
//   - Names above 1,024 bytes that a pod made are not listed.
//
// # Files
//
// A write goes to a file of its own in the hidden folder .s3compat_uploads, is synced and then renamed into place, so a
// reader sees the old object or the new one. An answer of success comes after the folders of the name are synced, too, and so
// does that of a deletion: both survive a power cut. The hidden folder is not listed and has no keys. What is left in it for seven days is removed.
//
// The ETag of an object is the MD5 of what was put (of a multipart upload: AWS's form of it). It is kept with the
// metadata in an extended attribute beside size and time of the file, so that a change by a pod is noticed. Any other file has
// an ETag made of what stat says, of the form of a multipart upload, so that clients do not take it for an MD5.
//
// The checksums of an upload's parts are in the names of their files, and from the completion on in the record of the object,
// as far as there is room, beside the sizes of the parts.
//
// A process with CAP_SYS_RESOURCE of the host is not held to quotas by the kernel; serve from one without it.
package s3
