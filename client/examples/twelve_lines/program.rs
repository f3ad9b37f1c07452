#[tokio::main]
async fn main() -> Result<(), fatbtree::Error> {
    let db = fatbtree::connect("cluster.toml").await?;
    db.put(1, b"one").await?;
    assert_eq!(db.get(1).await?.as_deref(), Some(&b"one"[..]));
    assert!(db.compare_and_swap(1, b"one", b"two").await?);
    let mut pairs = db.scan(..10);
    while let Some((key, value)) = pairs.next().await.transpose()? {
        assert_eq!((key, &value[..]), (1, &b"two"[..]));
    }
    db.delete(1).await?;
    db.close().await;
    Ok(())
}
